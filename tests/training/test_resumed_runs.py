"""A run that was stopped and resumed, against the one that was not."""

import dis
import os
import signal
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from training_runs import BATCHES, Interrupting, Net, Wrapper, make_net, records, source_threads

from diskgnn.training.checkpoints import load_checkpoint
from diskgnn.training.evaluate import evaluate
from diskgnn.training.train import train


# 7 minibatches an epoch, a record every 3: in the middle of an epoch, of a record, and at both ends.
@pytest.mark.parametrize("trained", [0, 1, 3, 7, 9, 13, 14])
def test_a_resumed_run_is_the_uninterrupted_run(sources, tmp_path, trained):
    arguments = {"valid_source": sources["valid"], "test_source": sources["test"], "seed": 5, "lr": 0.02,
                 "record_every_batches": 3}  # fmt: skip
    whole = train(sources["train"], model=make_net(), epochs=3, metrics=tmp_path / "whole.jsonl", **arguments)
    arguments |= {"metrics": tmp_path / "parts.jsonl", "checkpoint": tmp_path / "checkpoint"}
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(sources["make"]("train"), trained), model=make_net(), epochs=3, **arguments)
    assert not source_threads()

    torch.manual_seed(999)
    result = train(sources["make"]("train"), model=Net(), epochs=3, resume=True, **arguments)
    assert result.resumed_from[0] * BATCHES + result.resumed_from[1] == trained
    assert [epoch.loss for epoch in result.epochs] == [epoch.loss for epoch in whole.epochs]
    assert records(tmp_path / "parts.jsonl") == records(tmp_path / "whole.jsonl")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, result.model.state_dict()[name])
    assert (result.best_epoch, result.test_accuracy) == (whole.best_epoch, whole.test_accuracy)


@pytest.mark.filterwarnings("ignore:no checkpoint in")
def test_an_interrupt_where_loops_go_back_loses_no_step(sources, tmp_path):
    """From Python 3.12 on, an error raised there would leave a `with` block of the same function without its end."""
    arguments = {"seed": 5, "lr": 0.02, "record_every_batches": 1, "epochs": 2}
    places = {}  # those of the loop where Python looks for signals, and how often it came there

    def interrupt_at(target):
        places.clear()

        def trace(frame, event, _):
            if not frame.f_code.co_filename.endswith("training/loop.py"):
                return None
            frame.f_trace_opcodes = True
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if event == "opcode" and name.startswith("JUMP_"):
                places[frame.f_code.co_name, frame.f_lasti] = places.get((frame.f_code.co_name, frame.f_lasti), 0) + 1
                if target == (frame.f_code.co_name, frame.f_lasti) and places[target] == 3:
                    raise KeyboardInterrupt
            return trace

        return trace

    def run(folder, target):
        told, before = [], sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # on 3.12, `settrace` looks whether some frame asks for them
        sys.settrace(interrupt_at(target))
        try:
            train(sources["make"]("train"), model=make_net(), callback=told.append, checkpoint=folder, **arguments)
        except KeyboardInterrupt:
            position = load_checkpoint(folder)["position"]
            assert position["epoch"] * BATCHES + position["batch"] == sum(each["event"] == "step" for each in told)
            return True
        finally:
            sys.settrace(before)
        return False

    assert not run(tmp_path / "whole", None)
    targets = [place for place, count in places.items() if count >= 3]
    assert targets
    assert all(run(tmp_path / str(number), target) for number, target in enumerate(targets))
    assert not source_threads()


@pytest.mark.filterwarnings("ignore:no checkpoint in", "ignore:the run in .* is complete already")
def test_killed_again_and_again_at_any_moment(sources, tmp_path):
    whole, parts = [], []
    arguments = {"seed": 5, "lr": 0.02, "record_every_batches": 1, "epochs": 4}
    train(sources["train"], model=make_net(), callback=whole.append, **arguments)
    random, interruptions, done = np.random.default_rng(0), 0, False
    while not done:
        source, net = sources["make"]("train"), make_net()
        try:
            # Later and later, so that it gets there.
            with interrupted_after(random.uniform(0.001, 0.01 * (interruptions + 1))):
                train(source, model=net, callback=parts.append, checkpoint=tmp_path / "checkpoint", resume=True,
                      **arguments)  # fmt: skip
            done = True
        except KeyboardInterrupt:
            interruptions += 1
    losses = [[r["loss"] for r in run if r["event"] == "step"] for run in (whole, parts)]
    assert losses[0] == losses[1]
    assert interruptions > 0
    assert not source_threads()


@contextmanager
def interrupted_after(seconds):
    """Ctrl-C, to the block that is at work then."""
    begun, ended, main = threading.Event(), threading.Event(), threading.get_ident()

    def interrupt():
        begun.wait()
        if not ended.wait(seconds):
            signal.pthread_kill(main, signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begun.set()
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ended.set()
        thread.join()
        signal.signal(signal.SIGINT, previous)


@pytest.mark.filterwarnings("ignore:no checkpoint in")
def test_ctrl_c_while_a_minibatch_is_long_in_coming_is_heeded(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("diskgnn.training.interrupts._LONGEST_WAIT_SECONDS", 0.1)
    never = threading.Event()

    class Stuck(Wrapper):
        def epoch(self, epoch):
            batches = self._source.epoch(epoch)
            yield next(batches)
            signal.raise_signal(signal.SIGINT)
            held_back.append(True)
            never.wait()

    held_back = []
    with pytest.raises(KeyboardInterrupt):
        train(Stuck(sources["make"]("train")), model=make_net(), checkpoint=tmp_path, epochs=1, lr=0.02)
    assert held_back
    assert load_checkpoint(tmp_path)["position"]["batch"] == 1


@pytest.mark.filterwarnings("ignore:no checkpoint in")
def test_ctrl_c_pressed_again_and_again_is_one(sources, tmp_path):
    """And what comes while the run closes disturbs nothing."""
    caught = []

    class Impatient(Wrapper):
        def epoch(self, epoch):
            for batch in self._source.epoch(epoch):
                for _ in range(3):
                    signal.raise_signal(signal.SIGINT)
                yield batch

    def handle(number, frame):
        caught.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(Impatient(sources["make"]("train")), model=make_net(), checkpoint=tmp_path, epochs=1, lr=0.02)
        assert signal.getsignal(signal.SIGINT) is handle
    finally:
        signal.signal(signal.SIGINT, previous)
    assert caught == [signal.SIGINT]


def test_ctrl_c_comes_between_the_minibatches_of_an_evaluation(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("diskgnn.training.interrupts._LONGEST_WAIT_SECONDS", 3600.0)

    class Interrupted(Wrapper):
        def epoch(self, epoch):
            for number, batch in enumerate(self._source.epoch(epoch)):
                if number == 0:
                    signal.raise_signal(signal.SIGINT)
                evaluated.append(number)
                yield batch

    evaluated = []
    valid = Interrupted(sources["make"]("valid", batch_size=4))
    with pytest.raises(KeyboardInterrupt):
        train(sources["make"]("train"), valid_source=valid, model=make_net(), checkpoint=tmp_path, epochs=1, lr=0.02)
    assert evaluated == [0]
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:no checkpoint in")
def test_ctrl_c_waits_for_the_step_to_end(sources, tmp_path):
    class Interrupted(Net):
        def forward(self, blocks, x):
            if self.training and torch.rand(()) < 0.2:
                os.kill(os.getpid(), signal.SIGINT)
            return super().forward(blocks, x)

    def run(**arguments):
        torch.manual_seed(3)
        train(sources["make"]("train"), model=Interrupted(), epochs=2, lr=0.02, record_every_batches=1, **arguments)

    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    whole, parts, interruptions = [], [], 0
    try:
        run(callback=whole.append)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for _ in range(30):
            try:
                run(callback=parts.append, checkpoint=tmp_path, resume=True)
                break
            except KeyboardInterrupt:
                interruptions += 1
    finally:
        signal.signal(signal.SIGINT, previous)
    losses = [[r["loss"] for r in seen if r["event"] == "step"] for seen in (whole, parts)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 14
    assert 0 < interruptions < 14


def test_training_on_for_more_epochs(sources, tmp_path):
    whole = train(sources["train"], model=make_net(), epochs=3)
    train(sources["make"]("train"), model=make_net(), epochs=2, checkpoint=tmp_path)
    more = train(sources["make"]("train"), model=make_net(), epochs=3, checkpoint=tmp_path, resume=True)
    assert more.resumed_from == (2, 0)
    assert [epoch.loss for epoch in more.epochs] == [epoch.loss for epoch in whole.epochs]
    with pytest.warns(UserWarning, match="complete already: 3 epochs"):
        again = train(sources["make"]("train"), model=make_net(), epochs=3, checkpoint=tmp_path, resume=True)
    assert again.epochs == more.epochs


def test_resuming_without_a_checkpoint_says_so(sources, tmp_path):
    with pytest.warns(UserWarning, match=f"no checkpoint in {tmp_path}, starting from the beginning"):
        result = train(sources["make"]("train"), model=make_net(), epochs=1, checkpoint=tmp_path, resume=True)
    assert result.resumed_from is None


@pytest.mark.cuda
def test_on_cuda(sources, tmp_path):
    arguments = {"valid_source": sources["valid"], "epochs": 3, "lr": 0.02, "device": "cuda"}
    whole = train(sources["train"], model=make_net(), **arguments)
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(sources["make"]("train"), 9), model=make_net(), checkpoint=tmp_path, **arguments)
    result = train(sources["make"]("train"), model=make_net(), checkpoint=tmp_path, resume=True, **arguments)
    # Sums over edges are atomic there, so their order is not fixed; a wrong random state would be far off.
    np.testing.assert_allclose([e.loss for e in result.epochs], [e.loss for e in whole.epochs], rtol=1e-3)


def test_a_plain_wrapper_trains_evaluates_and_resumes(sources, tmp_path):
    """Nothing asks what a source derives from."""
    whole = train(sources["train"], valid_source=sources["valid"], model=make_net(), epochs=2)
    arguments = {"valid_source": Wrapper(sources["valid"]), "checkpoint": tmp_path}
    train(Wrapper(sources["make"]("train")), model=make_net(), epochs=1, **arguments)
    resumed = train(Wrapper(sources["make"]("train")), model=make_net(), epochs=2, resume=True, **arguments)
    assert resumed.resumed_from == (1, 0)
    assert [epoch.loss for epoch in resumed.epochs] == [epoch.loss for epoch in whole.epochs]
    assert evaluate(resumed.model, Wrapper(sources["valid"])).accuracy == resumed.valid_accuracy
