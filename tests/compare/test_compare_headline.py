"""What a comparison says in sentences and means over seeds, against ones worked out here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from comparisons import comparison, cost, result

from diskgnn.compare.comparability import reached, seconds_to, target_score
from diskgnn.compare.comparison_record import EpochPoint, LoaderResult
from diskgnn.compare.headline import headline, reason
from diskgnn.compare.loader_summary import summarize
from diskgnn.compare.number_format import duration
from diskgnn.compare.timeline_words import track_words


@pytest.mark.parametrize(
    ("mine", "ginex", "memory", "expected"),
    [
        (31.2, 387.0, 29.4, "diskgnn trains an epoch in 31.2 s, 12.4× faster than the fastest baseline on disk (ginex, "
                            "387 s); that is 1.06× slower than in-memory."),
        (40.0, 20.0, None, "diskgnn trains an epoch in 40.0 s, 2.00× slower than the fastest baseline on disk (ginex, "
                           "20.0 s)."),
        (40.0, 40.4, None, "diskgnn trains an epoch in 40.0 s, within noise of the fastest baseline on disk (ginex, "
                           "40.4 s)."),
        (0.05, None, 0.1, "diskgnn trains an epoch in 50.0 ms, that is 2.00× faster than in-memory."),
        (None, 20.0, 10.0, "diskgnn was not compared; of the others in-memory is the fastest: 10.0 s."),
        (None, None, None, "Nothing was compared."),
    ],
)  # fmt: skip
def test_headline(mine, ginex, memory, expected):
    results = [_trained("diskgnn", mine), _trained("ginex", ginex), _trained("in-memory", memory, bound="memory")]
    made = comparison(results=tuple(one for one in results if one))
    assert headline(made, summarize(made.results)).replace("\xa0", " ") == expected


def _trained(name, seconds, wait=0.0, repeats=(), **changes):
    if seconds is None:
        return None
    training = dataclasses.replace(cost(seconds, wait), repeats_seconds=tuple(repeats))
    return LoaderResult(name, name, "", "ok", **{"bound": "random reads", "training": training, **changes})


def _told(*results, **changes):
    """Both sentences."""
    made = comparison(results=results, **changes)
    summaries = summarize(made.results)
    return [sentence.replace("\xa0", " ") for sentence in (headline(made, summaries), reason(made, summaries))]


@pytest.mark.parametrize(
    ("mine", "memory", "expected"),
    [
        ((0.030, 0.037, 0.052), (0.031, 0.036, 0.050), "that is within noise of in-memory."),
        ((0.030, 0.045, 0.052), (0.031, 0.036, 0.050), "that is 1.25× slower than in-memory, but measurements spread "
                                                       "as far (30.0 ms to 52.0 ms against 31.0 ms to 50.0 ms)."),
        ((0.046, 0.087, 0.099), (0.045, 0.050, 0.051), "that is 1.74× slower than in-memory, but measurements spread "
                                                       "as far (46.0 ms to 99.0 ms against 45.0 ms to 51.0 ms)."),
        ((0.045, 0.046, 0.047), (0.030, 0.031, 0.043), "that is 1.48× slower than in-memory, but measurements spread "
                                                       "as far (45.0 ms to 47.0 ms against 30.0 ms to 43.0 ms)."),
        ((0.045, 0.046, 0.047), (0.030, 0.031, 0.032), "that is 1.48× slower than in-memory"),
        ((0.030, 0.031, 0.032), (0.045, 0.046, 0.047), "that is 1.48× faster than in-memory"),
    ],
)  # fmt: skip
def test_a_difference_is_told_where_measurements_do_not_overlap(mine, memory, expected):
    told = _told(_trained("diskgnn", mine[1], repeats=mine), _trained("in-memory", memory[1], repeats=memory))
    assert expected in told[0]


def test_of_variants_within_noise_the_one_that_takes_least_in_all_is_told():
    """A training epoch that is 2 % shorter, after 100 s of preparing: in the next run it may be longer."""
    fresh = _in_all("diskgnn, fresh", 0.0, 30.6)
    reused = _in_all("diskgnn, one", 100.0, 30.0)
    assert "diskgnn (fresh) trains an epoch in 30.6 s" in _told(reused, fresh)[0]
    slow = _in_all("diskgnn, fresh", 0.0, 40.0)
    assert "diskgnn (one) trains an epoch in 30.0 s" in _told(slow, reused)[0]


def test_of_baselines_within_noise_the_one_that_takes_least_in_all_is_told():
    runs = [_in_all("static-packed", 100.0, 40.0), _in_all("ginex", 0.0, 41.0), _in_all("mmap", 0.0, 80.0)]
    assert "the fastest baseline on disk (ginex, 41.0 s)" in _told(_in_all("diskgnn, one", 10.0, 30.0), *runs)[0]


def _in_all(name, prepare_seconds, seconds):
    loader, _, variant = name.partition(", ")
    epochs = (EpochPoint(0, prepare_seconds + seconds, 1.0, None, None),)
    made = _trained(loader, seconds, prepare_seconds=prepare_seconds, epochs=epochs)
    return dataclasses.replace(made, name=name, variant=variant)


def test_seeds_are_measurements_too():
    runs = [_trained("diskgnn", seconds, seed=seed) for seed, seconds in enumerate((10.0, 14.0))]
    expected = "1.08× faster than in-memory, but measurements spread as far (10.0 s to 14.0 s against 13.0 s)"
    assert expected in _told(*runs, _trained("in-memory", 13.0))[0]


@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize(("feature_bytes", "fits"), [(1 << 20, True), (1 << 40, False)])
def test_who_needs_no_disk_is_told_so(compared, feature_bytes, fits):
    """By in-memory's own run under the cap, or by the sizes alone."""
    memory = _trained("in-memory", 4.0) if fits else LoaderResult("in-memory", "in-memory", "", "out of memory")
    results = (_trained("diskgnn", 4.0), *([memory] if compared else []))
    graph = {"name": "g", "feature_bytes": feature_bytes, "topology_bytes": 0}
    told = _told(*results, graph=graph, settings={"memory_bytes": 1 << 30})
    sentence = (
        "You do not need this tool for this graph: its features and edges (1.0 MiB) fit the memory given (1.0 GiB), so "
        "any loader that keeps them in memory will do."
    )
    assert (sentence in told) == fits


def test_memory_without_the_cap_says_nothing_of_the_memory_given():
    killed = LoaderResult("in-memory", "in-memory", "", "out of memory", "killed")
    uncapped = dataclasses.replace(_trained("in-memory", 4.0), name="in-memory, without the cap", capped=False)
    told = _told(_trained("diskgnn", 4.0), killed, uncapped)
    assert not any("You do not need" in sentence for sentence in told)


def test_headline_tells_that_ours_failed_and_that_the_epoch_was_cut():
    failed = LoaderResult("diskgnn", "diskgnn", "", "out of memory", "killed")
    made = comparison(results=(failed, _trained("ginex", 4.0)))
    assert headline(made, summarize(made.results)).startswith(
        "diskgnn has no result (out of memory); of the others ginex"
    )
    made = comparison(results=(_trained("diskgnn", 4.0), _trained("ginex", 8.0)), settings={"max_batches": 94})
    assert headline(made, summarize(made.results)).startswith("diskgnn trains 94 minibatches in 4.00\xa0s")


def test_the_second_sentence_says_where_the_time_goes():
    points = (EpochPoint(0, 50.0, 0.1, None, None), EpochPoint(1, 100.0, 0.1, None, None))
    mine = _trained("diskgnn", 40.0, 25.0, bound="sequential reads", bound_seconds=10.0, loading=cost(30.0, 30.0),
                    epochs=points)  # fmt: skip
    assert _told(mine)[1] == (
        "An epoch takes 50.0 s with its share of preparing, training waits for minibatches 62% of its time, and "
        "loading alone takes 3.00× as long as reading the same bytes in one go at the disk's full speed."
    )
    assert _told(_trained("diskgnn", 40.0, 10.0))[1] == "Training waits for minibatches 25% of its time."


def test_threads_have_names_that_need_no_explanation():
    assert [track_words(track) for track in ("disk", "sample_1", "gather_0", "train", "mine_x")] == [
        "disk reads", "sampling 2", "fetching rows 1", "training", "mine_x",
    ]  # fmt: skip


def test_the_accuracy_told_is_that_of_the_epoch_best_in_validation():
    points = [(0.5, 0.9), (0.7, 0.6), (0.6, 0.8)]  # (validation, test)
    run = dataclasses.replace(
        result("ginex"),
        epochs=tuple(EpochPoint(epoch, 10.0 * epoch, 0.1, *found) for epoch, found in enumerate(points)),
    )
    (summary,) = summarize([run])
    assert (summary.score, summary.deviation) == (0.6, 0.0)
    assert target_score([summary]) == 0.6
    assert summary.total_seconds == 20.0 / 3


def test_seeds_are_averaged():
    results = [result("ginex", seed) for seed in range(4)] + [result("in-memory", seed) for seed in range(4)]
    ginex, memory = summarize(results)
    accuracies = np.array([[point.test_score for point in one.epochs] for one in results[:4]])
    seconds = np.array([[point.seconds for point in one.epochs] for one in results[:4]])
    np.testing.assert_allclose([point.score for point in ginex.curve], accuracies.mean(0))
    np.testing.assert_allclose([point.deviation for point in ginex.curve], accuracies.std(0, ddof=1))
    np.testing.assert_allclose([point.seconds for point in ginex.curve], seconds.mean(0))
    assert ginex.training_seconds == pytest.approx(np.mean([one.training.seconds for one in results[:4]]))
    assert ginex.seeds == 4
    assert ginex.score == pytest.approx(accuracies[:, -1].mean())  # nothing validated: the last epoch
    assert ginex.deviation == pytest.approx(accuracies[:, -1].std(ddof=1))
    best = max(ginex, memory, key=lambda one: one.score)
    assert target_score([ginex, memory]) == best.score - best.deviation
    assert ginex.total_seconds == pytest.approx(seconds[:, -1].mean() / 8)
    reached = np.argmax(accuracies.mean(0) >= accuracies.mean(0).max())
    assert seconds_to(accuracies.mean(0).max(), ginex.curve) == pytest.approx(seconds.mean(0)[reached])
    assert seconds_to(1.1, ginex.curve) is None


def test_when_few_reach_the_best_accuracy_it_is_not_told_when():
    summaries = summarize([result(name, seed) for name in ("ginex", "in-memory", "mmap") for seed in range(4)])
    target, seconds_of = reached(summaries)
    assert target == target_score(summaries)
    assert set(seconds_of) == {"ginex", "in-memory", "mmap"}
    best, *others = sorted(summaries, key=lambda one: -one.score)
    raised = dataclasses.replace(
        best, score=0.9, deviation=0.0,
        curve=tuple(dataclasses.replace(point, score=0.9) for point in best.curve),
    )  # fmt: skip
    assert reached([raised, *others]) is None


def test_a_seed_that_failed_is_told():
    broken = dataclasses.replace(result("ginex", 1), status="out of memory", message="killed", epochs=())
    (one,) = summarize([result("ginex"), broken])
    assert (one.ok, one.seeds, one.message) == (True, 1, "1 of 2 seeds: out of memory, killed")


def test_durations_have_three_digits():
    shown = [duration(seconds).replace("\xa0", " ") for seconds in (0, 0.0523, 0.3, 31.21, 99.96, 599.9, 754, 9000)]
    assert shown == ["0 s", "52.3 ms", "0.300 s", "31.2 s", "100 s", "600 s", "12.6 min", "2.50 h"]
