# SPDX-License-Identifier: MIT
"""The measuring tools: what is counted, what is timed, that a wrong result has no figure."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from fake_peers import SMALL, Broken, Exact, Silent, Wrong, measured

import fastattn
from fastattn import reference
from fastattn.measure import (
    checking,
    limits,
    peer_jax,
    peers,
    runner,
    sweeps,
    table,
    timing,
)
from fastattn.measure.problems import Problem
from fastattn.measure.runner import PEAK, READ


def test_interleaved_rounds():
    log = []
    calls = {
        name: lambda name=name: log.append(name) or time.sleep(2e-2) for name in ("a", "b", "c")
    }
    run = timing.interleave(calls, meters={"m": lambda: 5.0}, rounds=6, settle=0)
    assert {name: len(t.samples) for name, t in run.timings.items()} == dict.fromkeys("abc", 6)
    assert run.rates["m"].tolist() == [5.0] * 6
    # Each sample is one untimed and one timed call; the calls before it found that out.
    rounds = np.array(log[-36:]).reshape(6, 6)
    assert all(sorted(each) == list("aabbcc") for each in rounds.tolist())
    assert len({tuple(each) for each in rounds.tolist()}) > 3
    assert 0.5 < run.ratio("a", "b") < 2
    shares = 1 / run.timings["a"].samples
    assert run.share("a", "m", work=5.0) == pytest.approx(np.median(shares))


def test_short_calls_are_repeated():
    run = timing.interleave({"nothing": lambda: None}, rounds=3, settle=0)
    timed = run.timings["nothing"]
    assert timed.calls > 100
    assert timed.median < 1e-5


def test_a_sample_is_the_median_of_several_stretches():
    log = []
    sampler = timing._Sampler(lambda: log.append(0) or time.sleep(4e-3))
    log.clear()
    sampler.sample()
    assert len(log) == sampler.warm + sampler.calls * sampler.stretches
    assert 3 <= sampler.stretches <= 5
    pauses = iter([0, 1e-3, 2e-2, 1e-3, 1e-3, 1e-3, 1e-3])  # one of them interrupted
    sampler.call = lambda: time.sleep(next(pauses))
    assert 1e-3 <= sampler.sample() < 1e-2


def test_statistics():
    timed = timing.Timing(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
    assert timed.median == 3.0
    assert timed.quartiles == (2.0, 4.0)
    assert timed.outliers == 1
    assert timed.noise == pytest.approx(3.64 * 2 / 5**0.5 / 3)
    assert timing.geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert np.isnan(timing.geomean([]))


@pytest.mark.parametrize("count", [5, 7, 12, 31, 301])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_noise_is_what_95_of_100_medians_keep_to(draw, count, rng):
    """Of times that scatter to both sides, and of those that interruptions make longer."""
    samples = 10 + getattr(rng, draw)(size=(2000, count))
    true = 10 + {"normal": 0, "exponential": np.log(2)}[draw]
    held = [abs(np.median(one) - true) <= timing.relative_noise(one) * np.median(one)
            for one in samples]  # fmt: skip
    assert (0.88 if count == 5 else 0.93) < np.mean(held) < 0.98


def test_ratios_and_shares_are_those_within_the_rounds():
    fast, slow = (timing.Timing(np.array(each)) for each in ([1.0, 1.0, 4.0], [2.0, 4.0, 12.0]))
    run = timing.Run({"fast": fast, "slow": slow}, {"m": np.array([10.0, 20.0, 20.0])})
    assert run.ratios("fast", "slow").tolist() == [2.0, 4.0, 3.0]
    assert run.ratio("fast", "slow") == 3.0
    assert run.ratio_noise("fast", "slow") == pytest.approx(1.82 * (8 / 3) / 3**0.5 / 3)
    assert run.share("fast", "m", work=20.0) == 1.0
    assert run.noise == fast.noise > slow.noise


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, timing.MIN_ROUNDS), (1e9, 7)])
def test_rounds_fill_the_time_that_there_is(seconds, rounds, monkeypatch):
    monkeypatch.setattr(timing, "MAX_ROUNDS", 7)
    seen = []
    timing.interleave({}, meters={"m": lambda: 1.0}, seconds=seconds, settle=0,
                      progress=lambda *done: seen.append(done))  # fmt: skip
    assert seen == [(done, rounds) for done in range(1, rounds + 1)]


def test_share_of_other_processes(monkeypatch):
    looks = [(1.0, 10.0, 0.5), (5.0, 20.0, 1.5), (2.0, 20.0, 3.5), (1.0, 10.0, 0.5), None]
    looks = iter([*looks, None, (1.0, 10.0, 0.5)])
    monkeypatch.setattr(timing._Others, "_look", lambda self: (n := next(looks)) and np.array(n))
    others = timing._Others()
    assert others.share() == pytest.approx(0.3)
    assert others.share() == 0.0  # clocks of different steps: no less than nothing
    assert others.share() is None  # no time has passed
    assert others.share() is None  # nor is there a /proc
    assert timing._Others().share() is None  # there was none
    monkeypatch.undo()
    monkeypatch.setattr(timing, "Path", lambda name: Path("no such directory", name[1:]))
    assert timing._Others().share() is None


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="there is no /proc either")
def test_time_of_all_cpus():
    tick = os.sysconf("SC_CLK_TCK")
    text = "cpu  10 20 30 1000 40 1 2 3 99 99\ncpu0 5 5 5 5 5 5 5 5 0 0\n"
    assert timing.cpu_seconds(text) == (66 / tick, 1106 / tick)


def test_a_wrong_peer_has_no_figure():
    row = measured(Exact, Wrong, Broken, Silent)
    assert row.measured
    assert row.failed
    assert row.peers == []
    assert row.best_peer is None
    assert "WrongResultError" in row.entries["wrong"].note
    assert row.entries["broken"].note == "RuntimeError: no kernel"
    assert row.entries["silent"].note == "not today"
    assert not row.entries["silent"].failed
    _, [line] = table.cells([row])
    assert line[-2:] == ["wrong", "wrong"]  # nobody needs a column of one that is silent
    assert [each[1] for each in table.details([row])[1]] == ["exact", "wrong", "broken", "silent"]
    assert "SMALL" not in line
    assert any("wrong: WrongResultError" in text for text in table.summary([row]))


def test_a_library_that_can_do_nothing_is_spoken_of():
    class Partial(Silent):
        name = "partial"

        def supports(self, problem):
            return None if problem.causal else "causal only"

    rows = [measured(Exact, Silent, Partial), measured(Exact, Silent, Partial)]
    silent, partial = "silent: no figures: not today", "partial: no figures: causal only"
    assert table.summary(rows)[-2:] == [silent, partial]
    rows.append(measured(Exact, Silent, Partial, problem=Problem(Sq=9, causal=True)))
    assert table.summary(rows)[-1] == silent
    assert partial not in table.summary(rows)
    assert table.absences([measured(Exact, Broken)]) == []  # that has a column of its failures


def test_failures_of_sweeps_are_handed_on(monkeypatch):
    def measure(problem, contestants, seconds):
        right = runner.Entry("right", "1", 0.0, timing.Timing(np.ones(3)))
        entries = {"right": right, "broken": runner.Entry("broken", "1", note="no", failed=True)}
        return runner.Row(problem, entries)

    monkeypatch.setattr(runner, "measure", measure)
    found, failures = sweeps.run_all(2, [], 1.0)
    assert [(each.library, each.x) for each in found["threads"]] == [("right", 1), ("right", 2)]
    assert "threads 2: 1x8x1024x64 causal: broken: no" in failures
    assert len(failures) == sum(map(len, found.values()))


def test_a_library_that_cannot_be_imported_fails_alone():
    class Torn(Exact):
        name = "torn"

        @property
        def version(self):
            raise OSError("libtorn.so: cannot open shared object file")

    row = measured(Exact, Torn, Silent)
    assert row.measured
    entry = row.entries["torn"]
    assert (entry.failed, entry.version) == (True, "unknown")
    assert entry.note == "OSError: libtorn.so: cannot open shared object file"
    assert (row.entries["silent"].version, row.entries["silent"].failed) == ("1", False)


def test_a_library_may_come_in_a_distribution_of_another_name():
    class Renamed(peers.Peer):
        package = "no-such-distribution"

    assert Renamed(1).version == "unknown"


def test_a_wrong_subject_has_no_figure_either():
    row = measured(Wrong, Exact)
    assert not row.measured
    assert row.failed
    _, [line] = table.cells([row])
    assert line[1] == "wrong"
    json.dumps(table.as_json([row]))
    assert measured(Wrong).share(bound=PEAK) is None
    assert row.share(bound=PEAK) is None  # nor has one that was not timed beside others


def test_check_rejects_shape_and_nan():
    inputs = SMALL.inputs()
    right = reference.attention(inputs.q, inputs.k, inputs.v)
    spoiled = right.copy()
    spoiled[1, 3, 19, 7] = np.nan
    assert checking.check(peers.Prepared(lambda: right), SMALL, inputs) < 1e-15
    for result, message in ((spoiled, "NaN"), (right[0], "shape")):
        with pytest.raises(checking.WrongResultError, match=message):
            checking.check(peers.Prepared(lambda result=result: result), SMALL, inputs)


@pytest.mark.parametrize(
    "problem",
    [
        Problem(B=2, Hq=4, Sq=40, D=16),
        Problem(B=2, Hq=4, Hkv=2, Sq=40, D=16),
        Problem(Hq=2, Sq=40, D=16, causal=True),
        Problem(Hq=2, Sq=130, D=16, mask="blocks"),
        Problem(Hq=2, Sq=40, D=16, mask="random"),
        Problem(Hq=2, Sq=40, D=16, mask="float"),
        Problem(B=3, Hq=2, Sq=40, D=16, padded=True),
        Problem(Hq=2, Sq=7, Sk=40, D=16, causal=True),
        Problem(Hq=2, Sq=40, D=16, dtype="float64"),
        Problem(Hq=4, Hkv=2, Sq=40, D=32, causal=True, dtype="float16"),
        Problem(B=2, Hq=4, Hkv=2, Sq=1, Sk=150, D=32, dtype="bfloat16"),
        Problem(B=2, Hq=4, Hkv=2, Sq=1, Sk=150, D=32, kv_dtype="int8"),
        Problem(Hq=4, Hkv=2, Sq=9, Sk=150, D=32, dtype="bfloat16", kv_dtype="float8_e5m2"),
        Problem(Hq=2, Sq=40, D=32, causal=True, window=9),
        Problem(Hq=4, Hkv=2, Sq=3, Sk=200, D=32, causal=True, window=40, softcap=2.0, sinks=True),
        Problem(Hq=2, Sq=40, D=16, Dv=8),
        Problem(Hq=4, Hkv=2, D=32, causal=True, packed=((1, 150), (40, 40), (3, 9))),
        Problem(Hq=2, Sq=40, D=32, mask="float", causal=True),
    ],
    ids=lambda p: f"{p.label} {p.dtype}".replace(" ", "-"),
)
@pytest.mark.parametrize("name", ["fastattn", *peers.classes()])
def test_every_installed_peer_is_right(name, problem):
    known = peers.classes() | {"fastattn": peers.Fastattn}
    if not known[name].available() or known[name].on_request:
        pytest.skip(f"{name} is not installed, or it compiles for a minute")
    peer = known[name](peer_jax.cpus())
    if reason := peer.supports(problem):
        pytest.skip(reason)
    inputs = problem.inputs()
    allowed = checking.WRONG[problem.dtype] if problem.dtype in checking.WRONG_RMS else 1e-5
    assert checking.check(peer.prepare(problem, inputs), problem, inputs) <= allowed
    assert peer.version


@pytest.mark.parametrize(("dtype", "roundoff"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_check_of_16_bits_is_about_their_rounding(dtype, roundoff):
    problem = Problem(Hq=2, Sq=4, Sk=600, D=8, dtype=dtype)
    inputs = problem.inputs()
    right = reference.attention(inputs.q, inputs.k, inputs.v)
    rounded = right.astype(inputs.q.dtype).astype(np.float64)
    assert checking.check(peers.Prepared(lambda: rounded), problem, inputs) < roundoff
    # A weight of a three-hundredth for a key that is forbidden is no rounding, small as it is.
    other = reference.attention(inputs.q, inputs.k[:, :, :-2], inputs.v[:, :, :-2])
    what = "rms result" if dtype == "bfloat16" else "max"
    with pytest.raises(checking.WrongResultError, match=what):
        checking.check(peers.Prepared(lambda: other), problem, inputs)


def test_the_limit_is_the_one_that_takes_longer():
    slow_memory = measured(Exact, meters={PEAK: lambda: 1e12, READ: lambda: 1e3})
    assert slow_memory.bound == "read"
    assert "% read" in table.limit_text(slow_memory)
    assert "GB/s" in table.speed_text(slow_memory)
    slow_core = measured(Exact, meters={PEAK: lambda: 1e3, READ: lambda: 1e12})
    assert slow_core.bound == "peak"
    assert slow_core.share() == slow_core.share(bound="peak") > slow_core.share(bound="read")
    assert "GFLOP/s" in table.speed_text(slow_core)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_read_meter_reads_each_byte_once(threads):
    problem = Problem(Hq=3, Hkv=3, Sq=1, Sk=20_000, D=32)
    inputs = problem.inputs()
    meter = limits.read_of(problem, inputs, fastattn.isa(), threads)
    parts = [part for own in meter._parts for part in own]
    for tensor in inputs.k, inputs.v:
        assert sum(np.shares_memory(part, tensor) for part in parts) == threads
    assert 0 <= problem.kv_bytes() - sum(part.nbytes for part in parts) < 64 * 4 * threads
    few = limits.read_of(SMALL, SMALL.inputs(), fastattn.isa(), threads)
    assert all(own[0].nbytes >= limits.working_sets(threads)["L2"] for own in few._parts)


def test_select_names_what_there_is():
    with pytest.raises(ValueError, match="peer 'cuda': expected one of numpy, torch"):
        peers.select(["cuda"], 1)
    assert [peer.name for peer in peers.select(["numpy"], 1)] == ["numpy"]


def test_a_peer_that_is_asked_for_and_not_there_is_named(monkeypatch):
    class Absent(peers.NumPy):
        name, package = "absent", "no-such-package"

    monkeypatch.setattr(peers, "classes", lambda: {"absent": Absent, "numpy": peers.NumPy})
    with pytest.raises(ValueError) as caught:
        peers.select(["numpy", "absent"], 1)
    assert str(caught.value) == "peer 'absent': package no-such-package is not installed"
    assert [peer.name for peer in peers.select(None, 1)] == ["numpy"]


def test_limits_are_plausible():
    isa = fastattn.isa()
    peak = limits.FmaPeak(isa, "float32", 1)()
    assert 1e8 < peak < 1e13
    rate = limits.ReadBandwidth(isa, 1 << 16, 1)()
    assert 1e7 < rate < 1e13
    sizes = limits.working_sets(2)
    assert sizes["L2"] < sizes["DRAM"]


@pytest.mark.parametrize("meter", [
    lambda isa: limits.ReadBandwidth(isa, 1 << 10), lambda isa: limits.Exponentials(isa),
])  # fmt: skip
def test_no_call_from_python_lies_between_the_turns_of_a_meter(meter):
    meter, calls = meter(fastattn.isa()), []
    loop = meter._loop
    meter._loop = lambda *given: calls.append(given) or loop(*given)
    meter._repeats = 1000
    assert meter._work(0) in (1000 << 10, 1000 * limits.EXPONENTIALS)
    assert len(calls) == 1


def test_share_of_peak():
    row = measured(Exact, meters={PEAK: lambda: 1e12})
    assert row.share() == pytest.approx(row.gflops() / 1e3)
    assert measured(Exact).share() is None


def test_forced_isa_is_the_one_that_runs(monkeypatch):
    seen, active = [], fastattn.isa()
    original = fastattn.attention
    monkeypatch.setattr(
        fastattn, "attention", lambda *a, **o: seen.append(fastattn.isa()) or original(*a, **o)
    )
    forced, plain = (
        peers.Fastattn(1, isa).prepare(SMALL, SMALL.inputs()).call for isa in ("scalar", None)
    )
    monkeypatch.delattr(fastattn, "use_isa")  # a call that enters it has its time measured, too
    for call in (forced, plain, forced):
        call()
    assert seen == ["scalar", active, "scalar"]
    assert fastattn.isa() == active


def test_texts():
    assert table.seconds_text(4.2e-6) == "4.20 us"
    assert table.seconds_text(35e-3) == "35.0 ms"
    assert table.seconds_text(1.2) == "1.20 s"
    assert table.seconds_text(999.7e-6) == "1.00 ms"
    assert [table.seconds_text(each) for each in (0.0, np.inf)] == ["0 us", "inf s"]
    assert table.ratio_text(1.234) == "1.23x"
    headings, lines = ["problem", "time"], [["a", "1"], ["long one", "22"]]
    assert table.plain(headings, lines).splitlines() == [
        "problem   time",
        "--------  ----",
        "a            1",
        "long one    22",
    ]
    assert table.markdown(headings, lines).splitlines() == [
        "| problem | time |",
        "| :--- | ---: |",
        "| a | 1 |",
        "| long one | 22 |",
    ]


def test_summary_and_json():
    class Other(Exact):
        name = "other"

    rows = [measured(Exact, Other), measured(Exact, Other, problem=Problem(Sq=9, causal=True))]
    text = table.summary(rows)
    assert text[0].startswith("full: ")
    assert "(geometric mean of 1," in text[0]
    assert text[1].startswith("causal: ")
    data = json.loads(json.dumps(table.as_json(rows)))
    assert data[0]["entries"]["other"]["rounds"] == 3
    assert data[1]["causal"] is True
    assert table.versions(rows) == {"exact": "1", "other": "1"}
