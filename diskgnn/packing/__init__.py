"""Turns samples into a packed directory: decides where each row is, and writes each minibatch's rows contiguously on
disk.

In the order of the flow: `accesses` (which rows each minibatch needs), `reuse` and `placement` (Belady's schedule),
`tiers` and `static_choice` (how many rows each tier has), `headers` and `split_placer` (a step for each split),
`row_files` and `row_packing` (a step for each row set), `sending` (the same a part at a time, for a store). `pack` is
the stage, `part` makes damaged parts again.
"""
