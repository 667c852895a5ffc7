"""After a worker's end within a job: innocent rows are made, the sample that is the cause is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderd.core.actions import Quarantine, Send
from loaderd.core.batches import Draft, Piece, Place
from loaderd.core.events import WorkerDone
from loaderd.core.fault_attribution import Inquest
from loaderd.core.fault_ledger import Death
from loaderd.core.jobs import Condemned, Done, Job, Kind, Replaced, Stage
from loaderd.core.streams import Stream, StreamRules
from loaderd_testing.scheduler_harness import House, bad_row, done, one_session
from loaderd_wire.errors import BadSample
from loaderd_wire.slices import Slice


def ranges(house: House) -> list[tuple[int, int]]:
    return [(job.first, job.last) for job in house.jobs()]


def run_down(house: House, guilty: int, *, own: bool = True, limit: int = 60, cause: str = "SIGSEGV", key: str = "the key") -> int:
    """Work on; whoever gets to row `guilty` of the batch at 0, made from its own sample, dies of it. Returns the deaths."""
    deaths = 0
    for _ in range(limit):
        worker = next((w for w in house.sent if house.sent[w]), None)
        if worker is None:
            return deaths
        job = house.sent[worker][0]
        hit = job.start == 0 and job.first <= guilty < job.last and guilty not in job.lost
        if hit and not any(c.row == guilty for c in job.condemned):
            house.die(worker, guilty, own=own, cause=cause, key=key, stack="the stack")
            deaths += 1
        else:
            house.work(worker)
    raise AssertionError("it never ends")


def test_a_job_whose_worker_died_before_it_began_is_run_again_as_it_was() -> None:
    house = one_session()
    before = ranges(house)
    house.die(1, stage=Stage.IDLE)
    assert ranges(house) == before == [(0, 8)]


def test_the_row_that_a_worker_died_at_comes_alone_and_the_others_around_it() -> None:
    house = one_session(workers=3)
    house.die(1, row=1)  # of rows 0-2
    house.log.clear()
    house.work()
    house.work()
    assert sorted((a.job.first, a.job.last) for a in house.log if isinstance(a, Send)) == [(1, 2), (2, 3)]
    assert (0, 1) not in ranges(house)
    house.finish()
    assert not house.take().failed


def test_a_death_that_names_no_row_brings_single_rows() -> None:
    house = one_session(workers=2)
    house.die(1, stage=Stage.FETCH_MANY)
    house.finish()
    assert [(a.job.first, a.job.last) for a in house.log if isinstance(a, Send)][-4:] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_poison_sample_is_convicted_by_its_second_death_alone_and_named() -> None:
    house = one_session()
    assert run_down(house, 5) == 3
    batch = house.take()
    assert batch.failed
    (bad,) = batch.bad
    assert (bad.index, bad.key, bad.position, bad.stage, bad.error) == (50, "the key", 5, "read", "WorkerDied")
    assert "SIGSEGV" in bad.message
    assert bad.traceback == "the stack"
    assert [type(a) for a in house.log if isinstance(a, Quarantine)] == [Quarantine]
    assert not house.take().failed


def test_a_sample_without_a_stamped_key_is_named_by_its_index() -> None:
    house = one_session()
    run_down(house, 5, key="")
    assert house.take().bad[0].key == "50"


def test_a_poison_sample_under_skip_is_left_out_and_the_gap_closed() -> None:
    house = one_session(on_error="skip")
    run_down(house, 5)
    batch = house.take()
    assert (batch.filled, batch.failed) == (7, False)
    compact = [a.job for a in house.log if isinstance(a, Send) and a.job.kind == Kind.COMPACT]
    assert [job.lost for job in compact] == [(5,)]


def test_a_poison_sample_under_replace_gives_its_row_to_a_substitute() -> None:
    house = one_session(on_error="replace")

    def make(job: Job) -> Done:
        d = done(job)
        put = tuple(Replaced(c.row, 77) for c in job.condemned)
        return Done(d.job, d.bad, put, d.offset, d.size, 0.0, 0.0, 0.0, 0.0)

    house.make = make
    run_down(house, 5)
    batch = house.take()
    assert (batch.filled, batch.failed) == (8, False)
    assert [(b.index, b.substitute) for b in batch.bad] == [(50, 77)]
    assert any(a.job.condemned == (Condemned(5, 0),) for a in house.log if isinstance(a, Send))


def test_substitutes_that_are_poison_too_run_out() -> None:
    house = one_session(on_error="replace", streams=("train",))
    condemned: tuple[Condemned, ...] = ()
    for _ in range(200):
        worker = next((w for w in house.sent if house.sent[w]), None)
        if worker is None:
            break
        job = house.sent[worker][0]
        if job.start == 0 and job.first <= 5 < job.last and 5 not in job.lost:
            condemned = job.condemned
            house.core.state.streams["train"].deaths = 0  # as if another session's rows went on
            house.die(worker, 5, candidate=len(condemned))
        else:
            house.work(worker)
    batch = house.take()
    assert condemned == tuple(Condemned(5, candidate) for candidate in range(16))
    assert batch.failed
    assert [b.index for b in batch.bad] == [50]
    assert [a.sample.index for a in house.of(Quarantine) if isinstance(a, Quarantine)] == list(range(50, 67))


def named(house: House) -> list[tuple[int, str, str]]:
    """What the quarantine log is told: (index, key, error) of each sample."""
    return [(a.sample.index, a.sample.key, a.sample.error) for a in house.log if isinstance(a, Quarantine)]


def raises_and_is_replaced(job: Job) -> Done:
    """Row 5's own sample raises; its first substitute that is not condemned takes its place."""
    if not job.first <= 5 < job.last or job.start:
        return done(job)
    candidate = next(n for n in range(1, 17) if Condemned(5, n) not in job.condemned)
    bad = bad_row(5, lost=False)
    return done(job, (replace(bad, sample=replace(bad.sample, substitute=50 + candidate)),))


@pytest.mark.parametrize("own", [True, False])
def test_deaths_of_a_rows_own_sample_do_not_count_against_its_substitute(own: bool) -> None:
    house = one_session(on_error="replace")
    house.die(1, 5, own=own)
    for worker in range(2, 4 if own else 10):
        until_alone(house, worker, 5)
        house.die(worker, 5, own=own)
    worker = max(house.sent)
    until_alone(house, worker, 5)
    assert house.sent[worker][0].condemned == (Condemned(5, 0),)
    house.die(worker, 5, candidate=1, own=own)
    until_alone(house, worker + 1, 5)
    assert house.sent[worker + 1][0].condemned == (Condemned(5, 0),), "one death is no conviction, and the others were another sample's"


def test_a_substitute_that_kills_its_worker_is_named_and_the_rows_own_sample_keeps_its_own_fault() -> None:
    house = one_session(on_error="replace")
    house.make = raises_and_is_replaced
    house.die(1, 5, candidate=1)
    for worker in (2, 3):
        until_alone(house, worker, 5)
        house.die(worker, 5, candidate=1, key="the substitute's key", stack="the stack")
    house.finish()
    assert named(house) == [(51, "the substitute's key", "WorkerDied"), (1005, "key5", "ValueError")]
    (bad,) = house.take().bad
    assert (bad.index, bad.error, bad.substitute) == (1005, "ValueError", 52)


def test_a_conviction_tells_more_than_that_the_row_has_no_substitute_left() -> None:
    house = one_session(on_error="replace")

    def make(job: Job) -> Done:
        lost = not job.start and job.first <= 5 < job.last and Condemned(5, 0) in job.condemned
        return done(job, (bad_row(5, stage="read"),) if lost else ())

    house.make = make
    run_down(house, 5)
    batch = house.take()
    assert batch.failed
    assert [(bad.index, bad.error) for bad in batch.bad] == [(50, "WorkerDied")]
    assert named(house) == [(50, "the key", "WorkerDied")]


def test_a_batch_that_is_made_anew_forgets_what_was_bad_in_an_earlier_attempt() -> None:
    house = House(workers=1, on_error="skip")
    house.attach(prefetch=1)
    (first,) = house.jobs()
    house.step(WorkerDone(1, done(house.sent[1].popleft(), (bad_row(2),))))  # it fails only sometimes
    assert house.jobs(Kind.COMPACT)
    session = house.core.state.sessions[1]
    session.restart(session.items[0].draft)
    house.finish()
    batch = house.take()
    assert (batch.start, batch.filled, batch.bad) == (first.start, 8, ())


def test_a_batch_that_is_made_anew_forgets_the_substitute_of_an_earlier_attempt() -> None:
    house = one_session(on_error="replace")
    substitutes = iter([77, None])

    def make(job: Job) -> Done:
        if job.start or Condemned(5, 0) not in job.condemned:
            return done(job)
        index = next(substitutes)
        if index is None:
            return done(job, (bad_row(5, stage="read"),))
        return replace(done(job), replaced=(Replaced(5, index),))

    house.make = make
    while not house.core.state.sessions[1].items[0].draft.replaced:
        job = house.sent[max(house.sent)][0]
        if job.first <= 5 < job.last and not job.condemned:
            house.die(max(house.sent), 5)
        else:
            house.work()
    session = house.core.state.sessions[1]
    session.restart(session.items[0].draft)
    house.finish()
    batch = house.take()
    assert batch.failed
    assert [(bad.index, bad.substitute) for bad in batch.bad] == [(50, None)]


def test_a_death_in_a_collate_does_not_count_against_the_batch_that_is_left_without_a_condemned_row() -> None:
    house = one_session(collated=True, on_error="skip")
    house.die(1, row=0, stage=Stage.COLLATE)
    house.die(2, row=3)  # of the batch, then alone and alone
    house.die(3, row=3)
    house.die(4, row=3)
    assert house.jobs()[0].lost == (3,)
    house.die(5, row=0, stage=Stage.COLLATE)
    batch = house.take()
    assert (batch.filled, batch.failed) == (7, False)


def until_alone(house: House, worker: int, row: int) -> None:
    """The worker does what it has until it runs this row of the first batch and no other."""
    for _ in range(50):
        job = house.sent[worker][0]
        if (job.start, job.first, job.last) == (0, row, row + 1):
            return
        house.work(worker)
    raise AssertionError(f"row {row} never comes alone")


def test_seven_kills_from_outside_do_not_count_against_a_row_and_the_eighth_does() -> None:
    for kills, failed in ((7, False), (8, True)):
        house = one_session()
        for _ in range(kills + 1):  # the first one is not alone
            worker = next(w for w in house.sent if house.sent[w])
            while house.sent[worker] and not house.sent[worker][0].first <= 5 < house.sent[worker][0].last:
                house.work(worker)
                worker = next(w for w in house.sent if house.sent[w])
            house.die(worker, 5, own=False, cause="SIGKILL")
        house.finish()
        assert house.take().failed is failed


def test_the_second_job_of_a_dead_worker_is_innocent() -> None:
    house = House(workers=1)
    house.attach(prefetch=2)
    assert len(house.sent[1]) == 2
    second = house.sent[1][1]
    house.die(1, row=3)
    assert (second.start, second.first, second.last) in [(j.start, j.first, j.last) for j in house.jobs()] or any(
        p.first == 0 for p in house.core.state.sessions[1].items[1].draft.todo
    )
    house.finish()
    assert not house.take().failed
    assert not house.take().failed


def test_a_death_while_the_dataset_is_opened_is_no_samples_fault() -> None:
    house = one_session()
    for _ in range(5):
        house.die(next(w for w in house.sent if house.sent[w]), stage=Stage.OPEN)
    house.finish()
    assert not house.take().failed


def test_a_stamp_with_a_row_outside_of_its_job_names_nobody() -> None:
    house = one_session(on_error="skip")
    house.die(1, row=500)
    house.finish()
    assert house.take().filled == 8


# collated streams


def test_a_row_that_kills_a_collated_batch_is_tried_alone_and_convicted() -> None:
    house = one_session(collated=True, on_error="skip")
    run_down(house, 3)
    kinds = [(a.job.kind, a.job.first, a.job.last, a.job.lost) for a in house.log if isinstance(a, Send)]
    assert kinds[:4] == [(Kind.BATCH, 0, 8, ()), (Kind.TRIAL, 3, 4, ()), (Kind.TRIAL, 3, 4, ()), (Kind.BATCH, 0, 8, (3,))]
    batch = house.take()
    assert (batch.filled, batch.failed) == (7, False)
    assert [b.index for b in batch.bad] == [30]


def test_a_collated_batch_that_is_made_anew_before_its_rows_were_tried_alone_has_them_tried_first() -> None:
    house = one_session(collated=True)
    house.die(1, row=3)
    assert [(job.kind, job.first) for job in house.jobs()] == [(Kind.TRIAL, 3)]
    session = house.core.state.sessions[1]
    house.look(house.seen(2, 3))
    session.restart(session.items[0].draft)
    house.finish()
    kinds = [a.job.kind for a in house.log if isinstance(a, Send)]
    assert kinds == [Kind.BATCH, Kind.TRIAL, *[Kind.TRIAL] * 8, Kind.BATCH]
    assert not house.take().failed


def test_a_collated_batch_waits_for_the_trials_of_its_rows() -> None:
    house = one_session(workers=2, collated=True)
    house.die(next(w for w in house.sent if house.sent[w]), row=3)
    assert [job.kind for job in house.jobs()] == [Kind.TRIAL]


def test_a_collate_that_kills_its_worker_twice_fails_its_batch_and_no_other() -> None:
    house = one_session(collated=True)
    house.die(1, row=0, stage=Stage.COLLATE)
    assert [j.kind for j in house.jobs()] == [Kind.BATCH]
    house.die(2, row=0, stage=Stage.COLLATE)
    batch = house.take()
    assert batch.failed
    assert [(b.index, b.stage) for b in batch.bad] == [(0, "collate")]
    assert not house.take().failed


def test_a_collate_that_raises_fails_its_batch_under_every_policy() -> None:
    for policy in ("raise", "skip", "replace"):
        house = one_session(collated=True, on_error=policy)
        house.make = lambda job: done(job, (bad_row(0, stage="collate"),) if job.start == 0 else ())
        assert house.take().failed
        assert not house.take().failed


def test_a_collated_batch_that_kills_without_a_culprit_ends_as_failed() -> None:
    house = one_session(collated=True)
    for _ in range(100):
        worker = next((w for w in house.sent if house.sent[w]), None)
        if worker is None:
            break
        if house.sent[worker][0].kind == Kind.BATCH and house.sent[worker][0].start == 0:
            house.die(worker, row=2)
        else:
            house.work(worker)
    assert house.take().failed


# the pool as a whole


def attributed(death: Death, *, kind: Kind = Kind.FILL, first: int = 2, last: int = 3, on_error: str = "raise", times: int = 2) -> Draft:
    """Of a batch of rows 0 to 7 from position 60 of 64, after as many such deaths in a job of these rows."""
    inquest = Inquest({"train": Stream(StreamRules("train", on_error, kind is Kind.BATCH, 64))}, lambda *at: 100 * at[3] + at[4])
    draft = Draft("train", on_error, kind is Kind.BATCH, 7, Slice(3, 60, 8))
    draft.begin(Place(1, 0, 1))
    job = Job(9, kind, "train", 1, 0, 7, 3, 60, 8, first, last)
    for n in range(times):
        draft.todo.clear()
        lines = inquest.hold(draft, job, Piece(kind, first, last), death, "cat.jpg", "the stack")
        assert len(lines) == (n == times - 1)
    return draft


def test_the_sample_behind_the_end_of_the_epoch_is_named_by_its_place_at_the_begin() -> None:
    draft = attributed(Death(5, Stage.DECODE, own=True, hung=False, cause="SIGSEGV"), first=5, last=6)
    assert draft.blame.convicted == {
        5: BadSample(100, "cat.jpg", 1, "decode", "WorkerDied", "it killed its worker each time: SIGSEGV", "the stack")
    }
    assert draft.failed


def test_a_sample_that_hangs_is_named_at_once_with_the_limit_that_it_has_passed() -> None:
    death = Death(2, Stage.READ, own=False, hung=True, cause="it took longer than sample_timeout_s = 1 s")
    draft = attributed(death, times=1)
    assert draft.blame.convicted[2] == BadSample(6200, "cat.jpg", 62, "read", "Timeout", death.cause, "the stack")


def test_a_key_of_a_row_outside_of_the_job_names_no_sample_of_it() -> None:
    death = Death(7, Stage.WRITE, own=True, hung=False, cause="SIGBUS")
    draft = attributed(death)
    (sample,) = draft.blame.convicted.values()
    assert (sample.key, sample.index, sample.stage) == ("6200", 6200, "read")


def test_a_batch_whose_collate_ends_its_worker_twice_has_no_more_work() -> None:
    draft = attributed(Death(0, Stage.COLLATE, own=True, hung=False, cause="exit code 3"), kind=Kind.BATCH, first=0, last=8)
    assert draft.blame.collate is not None
    assert (draft.blame.collate.stage, draft.blame.collate.position) == ("collate", 60)
    assert (list(draft.todo), draft.failed) == ([], True)


def test_a_row_whose_samples_are_all_bad_is_not_run_again() -> None:
    draft = attributed(Death(2, Stage.DECODE, own=True, hung=False, cause="SIGSEGV"), on_error="skip")
    assert draft.lost == (2,)
    assert [piece.kind for piece in draft.todo] == [Kind.COMPACT]
