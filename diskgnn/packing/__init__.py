"""Turns samples into a packed directory: decides where each row is, and writes each minibatch's rows contiguously on
disk.
"""
