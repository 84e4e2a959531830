"""A run that is stopped, by whatever and wherever, and resumed is the run that was not, bit for bit."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import runs
import torch
from omegaconf import OmegaConf
from pytorch_lightning import Trainer

from kgc.data.catalogue import load_folder
from kgc.errors import UserError
from kgc.module import KGEModule
from kgc.tasks import output

STEPS = 4  # an epoch of 1,592 triples
BASE = ["trainer.max_epochs=3", "batch_size=400"]

CASES = {
    "rotate-adversarial-adam": [],
    "transe-bernoulli-momentum-cosine-dropout": [
        "model=transe",
        "model.norm=2",
        "model.entity_dropout=0.2",
        "sampler=bernoulli",
        "sampler.mask_known=true",
        "loss=margin",
        "optimizer=sgd",
        "optimizer.momentum=0.9",
        "scheduler=cosine",
        "trainer.gradient_clip=1.0",
    ],
    "complex-one_vs_all-n3-adagrad-plateau": [
        "model=complex",
        "objective=one_vs_all",
        "regularizer=n3",
        "optimizer=adagrad",
        "scheduler=plateau",
        "scheduler.patience=0",
        "+scheduler.threshold=0.5",  # no validation counts as better, so that the rate falls every time
    ],
    "distmult-k_vs_all-adamw-step-reciprocal": [
        "model=distmult",
        "model.reciprocal=true",
        "model.relation_dropout=0.3",
        "objective=k_vs_all",
        "optimizer=adamw",
        "scheduler=step",
        "scheduler.step_size=1",
        "scheduler.gamma=0.5",
        "trainer.precision=bf16-mixed",
    ],
    "rotate-kbgan-adam-clipped": [
        "sampler=kbgan",
        "sampler.mask_known=true",
        "sampler.proposal.generator._target_=kgc.models.complex.ComplEx",
        "sampler.proposal.generator.dim=6",
        "trainer.gradient_clip=1.0",
    ],
    "transe-cache-adagrad-refreshed-in-the-first-and-the-third-epoch": [
        "model=transe",
        "sampler=cache",
        "sampler.mask_known=true",
        "sampler.proposal.cache_size=6",
        "sampler.proposal.random_size=6",
        "sampler.proposal.every=2",
        "loss=margin",
        "optimizer=adagrad",
    ],
}
CASES |= {
    "rotate-rowwise_adagrad-sparse-groups-warmup": [
        "optimizer=rowwise_adagrad",
        "optimizer.sparse=true",
        "optimizer.groups.relation.lr=0.3",
        "scheduler=warmup",
        "scheduler.warmup=1.6",
    ],
    "complex-lazy_adam-dura-cosine-warmup": [
        "model=complex",
        "regularizer=dura",
        "optimizer.sparse=true",
        "optimizer.groups.entity.lr=0.1",
        "scheduler=cosine",
        "scheduler.warmup=0.7",
    ],
    "distmult-groups-step-relation_prediction": [
        "model=distmult",
        "objective=one_vs_all",
        "objective.relation_weight=0.5",
        "optimizer=adagrad",
        "optimizer.groups.relation.lr=0.03",
        "optimizer.groups.relation.weight_decay=0.1",
        "scheduler=step",
        "scheduler.step_size=1",
    ],
}
CASES |= {
    "conve-k_vs_all-adam-groups": [  # batch statistics and three kinds of dropout
        "model=conve",
        "model.height=2",
        "model.channels=4",
        "model.kernel=2",
        "objective=k_vs_all",
        "+optimizer.groups.other.lr=0.005",
    ],
    "hitter-adversarial-adam": ["model=hitter", "model.heads=2", "model.width=8"],
    "atth-one_vs_all-adam-n3": ["model=atth", "objective=one_vs_all", "regularizer=n3"],
    "distmult-kbgan-warmup": [
        "model=distmult",
        "sampler=kbgan",
        "sampler.mask_known=true",
        "optimizer=adagrad",
        "scheduler=warmup",
        "scheduler.warmup=1.3",
    ],
    "transe-cache-lazy_adam-cosine-warmup": [
        "model=transe",
        "sampler=cache",
        "sampler.proposal.cache_size=5",
        "optimizer.sparse=true",
        "scheduler=cosine",
        "scheduler.warmup=1.7",
    ],
    "tucker-core-of-another-rate": [
        "model=tucker",
        "model.relation_dim=5",
        "objective=one_vs_all",
        "optimizer=adagrad",
        "optimizer.groups.other.lr=0.02",
    ],
}
WILD = runs.LOST_AFTER_TWO  # the best epoch is the second


class Crash(Exception):
    """A process that ends without a word."""


def crash() -> None:
    raise Crash


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def happening(action: Callable[[], None], owner: type, method: str, call: int) -> Iterator[None]:
    """Something happens at the beginning of the `call`-th call, from 0, of a method."""
    original = getattr(owner, method)
    calls = iter(range(10**6))

    def watched(*arguments, **options):
        if next(calls) == call:
            action()
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, watched)
        yield


def at_step(action: Callable[[], None], step: int) -> contextlib.AbstractContextManager:
    return happening(action, KGEModule, "training_step", step)


def steps_of(case: str) -> int:
    """Steps an epoch: K-vs-all counts distinct questions."""
    train = runs.bundled("nations")["train"]
    examples = len({(h, r) for h, r, _ in train}) + len({(r, t) for _, r, t in train}) if "k_vs" in case else len(train)
    return -(-examples // 400)


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own, and its pictures take longer than a tiny run."""
    monkeypatch.setattr(output, "write_report", lambda *_, **__: None)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a run that nothing stopped; each is trained once."""
    folders: dict[tuple[str, ...], Path] = {}

    def folder(*words: str) -> Path:
        if words not in folders:
            folders[words] = tmp_path_factory.mktemp("straight") / "run"
            runs.train(folders[words], *words)
        return folders[words]

    return folder


def last_of(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def assert_same_run(folder: Path, other: Path) -> None:
    for name in ("last.ckpt", "best.ckpt"):
        first, second = (runs.trained(f / "checkpoints" / name) for f in (folder, other))
        runs.assert_same(first, second, name)
    assert runs.digits(runs.metrics(folder)) == runs.digits(runs.metrics(other))
    assert runs.ranks(folder).equals(runs.ranks(other))


# Where a run stops.


@pytest.mark.parametrize(("epoch", "step"), [(1, 0), (2, 2)])
@pytest.mark.parametrize("case", CASES)
def test_crash(case, epoch, step, straight, tmp_path):
    """The epoch at hand is lost and trained again."""
    words = [*BASE, *CASES[case]]
    with at_step(crash, epoch * steps_of(case) + step), pytest.raises(Crash):
        runs.train(tmp_path, *words)
    assert runs.content(last_of(tmp_path))["global_step"] == epoch * steps_of(case)
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))


@pytest.mark.parametrize("step", [1, STEPS + 2])
@pytest.mark.parametrize("case", CASES)
def test_interrupt(case, step, straight, tmp_path):
    """The step at hand is finished and nothing is lost."""
    words = [*BASE, *CASES[case]]
    with at_step(interrupt, step), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *words)
    assert runs.content(last_of(tmp_path))["global_step"] == step + 1
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))


@pytest.mark.parametrize("step", [0, *range(STEPS, 2 * STEPS), 3 * STEPS - 1])
def test_interrupt_at_every_step_of_an_epoch(step, straight, tmp_path):
    with at_step(interrupt, step), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *BASE)
    assert not (tmp_path / "metrics.json").exists()
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*BASE))


def test_termination(straight, tmp_path):
    """A machine that wants its processes gone sends SIGTERM."""
    with at_step(terminate, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *BASE)
    assert runs.content(last_of(tmp_path))["global_step"] == STEPS + 2
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*BASE))


@pytest.mark.parametrize("action", [interrupt, crash])
def test_stop_in_validation(action, straight, tmp_path):
    expected = KeyboardInterrupt if action is interrupt else Crash
    with happening(action, KGEModule, "validation_step", 2), pytest.raises(expected):
        runs.train(tmp_path, *BASE)  # two batches of queries each, heads and tails
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*BASE))


@pytest.mark.parametrize("action", [interrupt, crash])
def test_stop_in_test(action, straight, tmp_path):
    """Training had ended: a resume only measures."""
    expected = KeyboardInterrupt if action is interrupt else Crash
    with happening(action, KGEModule, "test_step", 1), pytest.raises(expected):
        runs.train(tmp_path, *BASE)
    state = last_of(tmp_path).read_bytes()
    with at_step(crash, 0):
        runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*BASE))
    assert last_of(tmp_path).read_bytes() == state


@pytest.mark.parametrize("call", range(1, 6))
def test_crash_while_a_state_is_written(call, straight, tmp_path, monkeypatch):
    """Half a file is never found under a checkpoint's name. Each epoch here writes best, then last."""
    words = ["trainer.max_epochs=3", "sampler.num_negatives=64", "model.margin=6.0", "optimizer.lr=0.01", "seed=1"]
    scores = [row["valid/mrr"] for row in runs.content(last_of(straight(*words)))["kgc"]["history"]]
    assert scores == sorted(set(scores))
    save = Trainer.save_checkpoint
    calls = iter(range(100))

    def half(self, path, *arguments, **options):
        save(self, path, *arguments, **options)
        if next(calls) == call:
            os.truncate(path, os.path.getsize(path) // 2)
            raise Crash

    monkeypatch.setattr(Trainer, "save_checkpoint", half)
    with pytest.raises(Crash):
        runs.train(tmp_path, *words)
    if call == 1:
        assert not last_of(tmp_path).exists()
        runs.train(tmp_path, *words)  # nothing to go on from: the same command again
    else:
        runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]


@pytest.mark.parametrize("action", [interrupt, crash])
def test_signals_are_left_as_they_were(action, tmp_path):
    """The next trial of a sweep, and whoever calls the task, must hear Ctrl-C."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with at_step(action, 1), pytest.raises((KeyboardInterrupt, Crash)):
        runs.train(tmp_path / "stopped", *BASE)
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_second_ctrl_c_ends_the_run_at_once(straight, tmp_path):
    def twice() -> None:
        interrupt()
        interrupt()

    before = signal.getsignal(signal.SIGINT)
    with at_step(twice, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *BASE)
    assert signal.getsignal(signal.SIGINT) == before
    assert runs.content(last_of(tmp_path))["global_step"] == STEPS
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*BASE))


def test_stopped_again_and_again(straight, tmp_path):
    words = [*BASE, *CASES["transe-bernoulli-momentum-cosine-dropout"]]
    with at_step(interrupt, 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *words)
    for action, step, expected in (
        (interrupt, 0, KeyboardInterrupt),
        (interrupt, 3, KeyboardInterrupt),
        (crash, 4, Crash),
    ):
        with at_step(action, step), pytest.raises(expected):
            runs.resume(last_of(tmp_path))
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))


def test_stop_between_validations(straight, tmp_path):
    words = ["trainer.max_epochs=5", "trainer.val_every=3", "batch_size=400", "scheduler=step", "scheduler.step_size=1"]
    with at_step(interrupt, STEPS + 2), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *words)
    with at_step(crash, 3 * STEPS), pytest.raises(Crash):
        runs.resume(last_of(tmp_path))
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))


def test_without_valid_split(tmp_path):
    splits = runs.bundled("nations")
    data = runs.write_splits(tmp_path / "data", train=splits["train"], test=splits["test"])
    words = [*BASE, "dataset=folder", f"dataset.path={data}"]
    with at_step(interrupt, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "stopped", *words)
    runs.resume(last_of(tmp_path / "stopped"))
    runs.train(tmp_path / "straight", *words)
    assert_same_run(tmp_path / "stopped", tmp_path / "straight")


def test_killed_processes(straight, tmp_path):
    """SIGKILL, at moments that nobody chose, of real processes."""
    words = ["trainer.max_epochs=4", *CASES["transe-bernoulli-momentum-cosine-dropout"]]
    chain = runs.process(tmp_path, Path(__file__).with_name("killing.py"), tmp_path / "run", *words)
    assert chain.code == 0, chain.err
    assert int(chain.out) >= 2
    assert_same_run(tmp_path / "run", straight(*words))


def test_ctrl_c_of_the_command(tmp_path, straight, capsys):
    """Exit code 130, and the line to go on with is said and works."""
    words = [*runs.TINY, *BASE]
    with at_step(interrupt, STEPS + 1):
        stopped = runs.command(capsys, tmp_path, "train", *words, "hydra.run.dir='a folder'")
    assert stopped.code == 130
    assert stopped.err == ""
    (line,) = [line for line in stopped.out.splitlines() if line.startswith("stopped;")]
    log = (tmp_path / "a folder" / "train.log").read_text()
    assert line in log
    *_, program, word = shlex.split(line)
    assert program == "train.py"
    resumed = runs.command(capsys, tmp_path, "train", word)
    assert resumed.code == 0, resumed.err
    assert_same_run(tmp_path / "a folder", straight(*BASE))
    assert (tmp_path / "a folder" / "train.log").read_text().startswith(log)
    assert [path.name for path in tmp_path.iterdir()] in (
        ["a folder"],
        ["outputs", "a folder"],
        ["a folder", "outputs"],
    )
    assert not list(tmp_path.glob("outputs/*"))


# What a resume keeps.


def test_best_score_is_remembered(straight, tmp_path):
    """Valid MRR was highest in the second epoch; a resumed run must not take a lower one for a record."""
    with at_step(interrupt, 7 * 4 + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *WILD)  # 7 steps an epoch
    best = tmp_path / "checkpoints" / "best.ckpt"
    before = best.read_bytes()
    runs.resume(last_of(tmp_path))
    assert best.read_bytes() == before
    assert runs.content(best)["epoch"] == 1
    assert_same_run(tmp_path, straight(*WILD))


def test_console_remembers_the_best_score(tmp_path, capsys):
    with at_step(interrupt, 7 * 4 + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *WILD)
    runs.resume(last_of(tmp_path))
    scores = [row["valid/mrr"] for row in runs.content(last_of(tmp_path))["kgc"]["history"]]
    said = re.findall(r"^epoch (\d+)/10 .*\(best (\d\.\d+)\)", capsys.readouterr().out, flags=re.MULTILINE)
    assert said == [(str(epoch), f"{max(scores[:epoch]):.4f}") for epoch in range(1, 11)]


@pytest.mark.parametrize("step", [7 * 2 + 3, 7 * 3, 7 * 4 - 1])
def test_patience_is_remembered(step, straight, tmp_path):
    """Two validations after the second epoch without a higher score end the run with the fourth."""
    words = [*WILD, "trainer.patience=2"]
    assert runs.metrics(straight(*words))["train/epochs"] == 4
    with at_step(interrupt, step), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *words)
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))


def test_a_run_whose_patience_ended_stays_ended(straight, tmp_path):
    """Killed between the last epoch and the test."""
    words = [*WILD, "trainer.patience=2"]
    with happening(crash, KGEModule, "test_step", 0), pytest.raises(Crash):
        runs.train(tmp_path, *words)
    runs.resume(last_of(tmp_path))
    assert_same_run(tmp_path, straight(*words))


def test_more_epochs_in_the_same_folder(straight, tmp_path):
    runs.train(tmp_path, "trainer.max_epochs=2", "batch_size=400")
    short = runs.metrics(tmp_path)
    assert short["train/epochs"] == 2
    log = (tmp_path / "train.log").read_text()
    longer = runs.resume(last_of(tmp_path), "trainer.max_epochs=3")
    assert longer == runs.metrics(tmp_path)
    assert longer["train/epochs"] == 3
    assert longer["train/seconds"] > short["train/seconds"]
    assert_same_run(tmp_path, straight(*BASE))
    assert (tmp_path / "train.log").read_text().startswith(log)
    assert OmegaConf.load(tmp_path / "config.yaml").trainer.max_epochs == 3


def test_resume_in_another_folder(straight, tmp_path):
    with at_step(interrupt, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "old", *BASE)
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()}
    runs.resume(last_of(tmp_path / "old"), run_dir=tmp_path / "new")
    assert_same_run(tmp_path / "new", straight(*BASE))
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()} == before


def test_resume_of_a_folder_that_was_moved(straight, tmp_path):
    with at_step(interrupt, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "old", *BASE)
    shutil.move(tmp_path / "old", tmp_path / "new")
    runs.resume(last_of(tmp_path / "new"))
    assert_same_run(tmp_path / "new", straight(*BASE))
    assert not (tmp_path / "old").exists()


def test_resume_without_the_best(straight, tmp_path):
    """`last.ckpt` was copied alone, and no later epoch is better: said before any training, or not needed."""
    with at_step(interrupt, 7 * 4 + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *WILD)
    (tmp_path / "checkpoints" / "best.ckpt").unlink()
    before = last_of(tmp_path).read_bytes()
    try:
        runs.resume(last_of(tmp_path))
    except UserError as error:
        assert "best.ckpt" in str(error)  # noqa: PT017
        assert last_of(tmp_path).read_bytes() == before
    else:
        assert runs.metrics(tmp_path)["train/epochs"] == 10


def test_more_epochs_with_the_default_schedule_learn_on(tmp_path):
    """A schedule over the whole run is over the longer run when a resume makes it longer."""
    words = ["batch_size=400", "scheduler=cosine", "optimizer.lr=0.1"]
    runs.train(tmp_path, *words, "trainer.max_epochs=2")
    runs.resume(last_of(tmp_path), "trainer.max_epochs=4")
    rates = [row["train/lr"] for row in runs.content(last_of(tmp_path))["kgc"]["history"]]
    # Epoch 3 of 4 on a cosine from 0.1 to 0: 0.1 · (1 + cos(π · 2/4)) / 2, and epoch 4: 0.1 · (1 + cos(π · 3/4)) / 2.
    assert rates[2:] == pytest.approx([0.05, 0.1 * (1 - 0.5**0.5) / 2])


def test_resume_from_the_best(straight, tmp_path):
    """The epochs after the best are trained once more."""
    with at_step(interrupt, 7 * 4 + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path, *WILD)
    runs.resume(tmp_path / "checkpoints" / "best.ckpt")
    assert_same_run(tmp_path, straight(*WILD))


# What a resume takes from the command line.


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """`last.ckpt` of a run that was stopped in its second epoch."""
    with at_step(interrupt, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "run", *BASE)
    return last_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("model=transe", "model"),
        ("model.dim=16", "model.dim=8"),
        ("dataset=kinship", "data"),
        ("objective=one_vs_all", "objective"),
    ],
)
def test_another_run_is_refused(stopped, word, named):
    before = stopped.read_bytes()
    with pytest.raises(UserError) as caught:
        runs.resume(stopped, word)
    assert named in str(caught.value)
    assert stopped.read_bytes() == before


# Each of these would change what an uninterrupted run learns.
@pytest.mark.parametrize(
    "word",
    [
        "optimizer.lr=0.5",
        "optimizer.groups.entity.lr=0.5",
        "optimizer.groups.relation.weight_decay=0.1",
        "optimizer=sgd",
        "sampler.num_negatives=1",
        "sampler=bernoulli",
        "sampler=uniform",
        "loss=margin",
        "regularizer=n3",
        "scheduler=step scheduler.step_size=1",
        "scheduler=warmup scheduler.warmup=3",
        "trainer.gradient_clip=0.001",
        "trainer.accumulate_grad_batches=2",
        "batch_size=100",
    ],
)
def test_a_key_of_the_command_line_is_followed_or_refused(stopped, straight, word):
    """`checkpoint` says in conf/train.yaml that keys given beside it override its config."""
    try:
        runs.resume(stopped, *word.split())
    except UserError as error:
        assert word.split("=")[0].split(".")[0] in str(error)  # noqa: PT017
        return
    weights, others = (
        runs.content(path)["state_dict"]["model.entity.weight"] for path in (stopped, last_of(straight(*BASE)))
    )
    assert not weights.equal(others), f"{word} had no effect and nothing was said"


def test_the_trainer_group_keeps_the_length_of_the_run(stopped):
    """`trainer=cpu` says where to compute, not to train a hundred epochs."""
    with happening(crash, KGEModule, "training_step", 3 * STEPS):
        values = runs.resume(stopped, "trainer=cpu")
    assert values["train/epochs"] == 3


def test_changed_data_is_refused(tmp_path):
    splits = runs.bundled("nations")
    data = runs.write_splits(tmp_path / "data", **splits)
    words = [*BASE, "dataset=folder", f"dataset.path={data}"]
    with at_step(interrupt, STEPS + 1), pytest.raises(KeyboardInterrupt):
        runs.train(tmp_path / "run", *words)
    before = last_of(tmp_path / "run").read_bytes()
    runs.write_splits(data, train=splits["train"][1:])
    then, now = runs.content(last_of(tmp_path / "run"))["kgc"]["digest"], load_folder(data).digest
    with pytest.raises(UserError) as refused:
        runs.resume(last_of(tmp_path / "run"))
    assert str(refused.value) == (
        f"the data of data changed since the checkpoint was written (digest {now[:12]}, then {then[:12]}): going on "
        "would mix two data sets; start a new run"
    )
    assert now != then
    assert last_of(tmp_path / "run").read_bytes() == before
    runs.write_splits(data, **splits)
    runs.resume(last_of(tmp_path / "run"))
    runs.train(tmp_path / "straight", *words)
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_fewer_epochs_than_there_were_is_one_line(straight, tmp_path):
    shutil.copytree(straight(*BASE), tmp_path / "run")
    with pytest.raises(UserError, match=r"trainer\.max_epochs=2: the checkpoint has 3 epochs already"):
        runs.resume(last_of(tmp_path / "run"), "trainer.max_epochs=2")


# Checkpoints of older versions.


def rewritten(checkpoint: Path, change: Callable[[dict], None]) -> None:
    """Changes what is in a checkpoint."""
    whole = runs.content(checkpoint)
    change(whole)
    torch.save(whole, checkpoint)


def without(config: dict, *keys: str) -> None:
    for key in keys:
        *parents, name = key.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        del node[name]


def test_keys_that_an_older_version_had_not_get_todays_defaults(stopped, straight):
    keys = ["trainer.accumulate_grad_batches", "trainer.auto_batch", "trainer.save_minutes", "ranking.precision"]
    keys += ["optimizer.sparse", "optimizer.groups", "model.entity_dropout", "test", "sampler.temperature"]
    keys += ["objective.sampler.temperature", "objective.subsampling"]
    rewritten(stopped, lambda whole: without(whole["kgc"]["config"], *keys))
    runs.resume(stopped)
    assert_same_run(stopped.parent.parent, straight(*BASE))
    config = OmegaConf.load(stopped.parent.parent / "config.yaml")
    assert (config.trainer.accumulate_grad_batches, config.sampler.temperature) == (1, 1.0)


def test_only_what_is_for_the_same_code_is_filled_in(stopped):
    """An older `adversarial` may have drawn by other code, whose keys are not today's."""
    from kgc.tasks.build import read_checkpoint
    from kgc.tasks.resume import resumed_config

    def older(whole: dict) -> None:
        config = whole["kgc"]["config"]
        config["sampler"]["proposal"] = {"_target_": "kgc.sampling.proposals.Typed"}
        config["scheduler"] = {"_target_": "kgc.schedules.constant", "_partial_": True}
        without(config, "trainer.patience", "optimizer.lr")

    rewritten(stopped, older)
    config = resumed_config(read_checkpoint(str(stopped)), [])
    assert dict(config.sampler.proposal) == {"_target_": "kgc.sampling.proposals.Typed"}
    assert dict(config.scheduler) == {"_target_": "kgc.schedules.constant", "_partial_": True}
    assert config.trainer.patience == 10
    assert config.optimizer.lr == 0.02


@pytest.mark.parametrize(
    ("place", "key"),
    [("kgc", "rates"), ("kgc", "schedule"), ("kgc", "history"), ("", "optimizer_states"), ("", "loops")],
)
def test_a_checkpoint_without_state_is_only_evaluated(place, key, stopped, tmp_path):
    rewritten(stopped, lambda whole: (whole[place] if place else whole).pop(key))
    with pytest.raises(UserError, match=rf"older version of kgc, it lacks '{f'{place}.' if place else ''}{key}'"):
        runs.resume(stopped)
    values = runs.evaluate(tmp_path / "evaluated", f"checkpoint='{stopped}'")
    assert values["test/num_queries"] == 402


def test_words_that_added_a_key_which_is_there_today_still_mean_it(stopped):
    rewritten(stopped, lambda whole: whole["kgc"]["overrides"].append("+optimizer.groups.other.lr=null"))
    assert runs.resume(stopped)["train/epochs"] == 3


def test_words_that_mean_nothing_today_are_named(stopped):
    rewritten(stopped, lambda whole: whole["kgc"]["overrides"].append("model.gone=1"))
    with pytest.raises(UserError, match=r"checkpoint=.*: the words of its run mean nothing .*model\.gone"):
        runs.resume(stopped)
