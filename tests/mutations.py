"""Whether the tests notice faults: each mutation puts one fault into a copy of the sources, and a test must fail.

    python tests/mutations.py [NAME ...]

A line of the suite that runs is not yet a line that is checked. The mutations below are faults that libraries of the
field have had, or that a change could bring: the last entity left out, a tie that counts as a win, the filter without
one side, a block counted twice. Of each the file, the exact text and what takes its place are given, and the tests that
shall notice, which pass without it. Not collected by pytest; to be run after changes to what it mutates, or to its
tests. Each takes 4 to 20 seconds of processor time; what caught them last stands in tests/benchmarks/README.md.

Exit status 1 if a mutation was not caught.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("kgc", "conf", "hydra_plugins", "tests")


@dataclass(frozen=True)
class Mutation:
    """A fault.

    Args:
        name: what goes wrong.
        file: from the repository's root.
        old, new: a text that occurs in the file once, and what takes its place.
        tests: files that `pytest` is given, the quick ones first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


RANKING = ("tests/test_ranking.py",)
READER = ("tests/data/test_reader.py",)
VOCABULARY = ("tests/data/test_vocabulary.py",)
KNOWN = ("tests/data/test_known.py",)
SPLITTING = ("tests/data/test_splitting.py",)
EVALUATE = ("tests/tasks/test_evaluate.py",)
COUNTING = ("tests/engine/test_counting.py",)
PROJECTED = ("tests/models/test_projected.py",)
RANKS = ("tests/metrics/test_ranks.py",)
ANSWERS = ("tests/metrics/test_answers.py",)
SAMPLER = ("tests/sampling/test_sampler.py",)
PROPOSALS = ("tests/sampling/test_proposals.py",)

MUTATIONS = [
    # Reading.
    Mutation(
        "labels are stripped",
        "kgc/data/reader.py",
        "else frame.select(COLUMNS)\n",
        "else frame.select(pl.col(COLUMNS).str.strip_chars())\n",
        READER,
    ),
    Mutation(
        "the last line is lost",
        "kgc/data/lines.py",
        "return lines[: filled[-1] + 1] if",
        "return lines[: filled[-1]] if",
        READER,
    ),
    Mutation(
        "ids follow the order of lines",
        "kgc/data/vocabulary.py",
        "series.unique().sort()",
        "series.unique(maintain_order=True)",
        VOCABULARY,
    ),
    Mutation(
        "an unknown label is the first entity",
        "kgc/data/vocabulary.py",
        "cast(pl.Int64).fill_null(-1)",
        "cast(pl.Int64).fill_null(0)",
        VOCABULARY,
    ),
    Mutation(
        "reading in parts takes the inverse of an order",
        "kgc/data/parts.py",
        "ids[order.to_numpy()] = np.arange(len(labels), dtype=np.int32)",
        "ids[:] = order.to_numpy()",
        ("tests/data/test_parts.py",),
    ),
    # Splitting.
    Mutation(
        "test triples stay in train",
        "kgc/data/splitting.py",
        "free[: valid + test], assume_unique",
        "free[:valid], assume_unique",
        SPLITTING,
    ),
    Mutation(
        "entities of test occur in train",
        "kgc/data/splitting.py",
        ").max_horizontal()",
        ").min_horizontal()",
        SPLITTING,
    ),
    Mutation(
        "triples of one moment are in the earlier split",
        "kgc/data/splitting.py",
        'times.search_sorted(times[place], "left")',
        'times.search_sorted(times[place], "right")',
        SPLITTING,
    ),
    # Known answers.
    Mutation(
        "the last entity is never a known answer",
        "kgc/data/known.py",
        "for bound in (first, first + max(1, self.num_entities)))",
        "for bound in (first, first + max(1, self.num_entities) - 1))",
        KNOWN,
    ),
    Mutation(
        "answers of the two sides are mixed up",
        "kgc/data/known.py",
        "return (side * num_relations + queries.relation.long())",
        "return (side * 0 + queries.relation.long())",
        KNOWN,
    ),
    Mutation(
        "the filter of asked queries has no head side",
        "kgc/data/known.py",
        "for side in Side:\n                wanted |=",
        "for side in (Side.TAIL,):\n                wanted |=",
        KNOWN,
    ),
    Mutation(
        "an entity twice in a pool is known once",
        "kgc/data/known.py",
        "return marked.gather(1, rows_of_pools((place % width).view(groups, width), number))",
        "return marked",
        KNOWN,
    ),
    Mutation(
        "valid is left out of the filter",
        "kgc/module.py",
        "for name in self.filter_splits]",
        'for name in self.filter_splits if name != "valid"]',
        EVALUATE,
    ),
    Mutation(
        "the default filter lacks test",
        "conf/ranking/filtered.yaml",
        "filter: [train, valid, test]",
        "filter: [train, valid]",
        EVALUATE,
    ),
    # Ranking.
    Mutation(
        "a tie is a better rival in float64",
        "kgc/engine/certified.py",
        "(again > value[at]).long()",
        "(again >= value[at]).long()",
        RANKING,
    ),
    Mutation(
        "fp32 decides without its error bound",
        "kgc/engine/certified.py",
        "low, high = _down(low), _up(high)",
        "low = high = value.float()",
        RANKING,
    ),
    Mutation(
        "the last certified block is counted twice",
        "kgc/engine/certified.py",
        "keys[:, : start - first] = torch.nan  # counted in the block before",
        "pass",
        RANKING,
    ),
    Mutation(
        "known answers of the last certified block are shifted",
        "kgc/engine/certified.py",
        "keys[layout.rank_of_row[known[0]], known[1] + (start - first)]",
        "keys[layout.rank_of_row[known[0]], known[1]]",
        RANKING,
    ),
    Mutation(
        "the last fp32 block is counted twice",
        "kgc/engine/blocks.py",
        "scores[:, : start - low] = torch.nan  # counted in the block before",
        "pass",
        RANKING,
    ),
    Mutation(
        "the last entity alone in a block is no rival",
        "kgc/engine/part.py",
        "for start in range(0, entities, block):",
        "for start in range(0, max(1, entities - 1), block):",
        RANKING,
    ),
    Mutation(
        "a target in the filter is not one of the candidates",
        "kgc/engine/part.py",
        "scorer.num_entities - known_count + known_target.long()",
        "scorer.num_entities - known_count",
        RANKING,
    ),
    Mutation(
        "a target of NaN is not noticed",
        "kgc/engine/part.py",
        "return torch.where(own.isfinite(), better, marks)",
        "return torch.where(own.isinf(), marks, better)",
        RANKING,
    ),
    Mutation(
        "rivals of NaN are not counted",
        "kgc/engine/blocks.py",
        "odd = ~whole.isfinite()",
        "odd = whole.isinf()",
        RANKING,
    ),
    Mutation(
        "the first entity is never a given candidate",
        "kgc/engine/given.py",
        "there, finite = given >= 0,",
        "there, finite = given > 0,",
        ("tests/engine/test_given.py",),
    ),
    Mutation(
        "eager counting loses ties",
        "kgc/engine/counting.py",
        "torch.ge(rows, low[queries]",
        "torch.gt(rows, low[queries]",
        COUNTING,
    ),
    Mutation(
        "compiled counting takes ties for wins",
        "kgc/engine/compiled.py",
        "torch.where(cells > high, float(_UNIT)",
        "torch.where(cells >= high, float(_UNIT)",
        COUNTING,
    ),
    Mutation(
        "compiled counting sums one cell too many",
        "kgc/engine/compiled.py",
        "_GROUPS * _LANES * (_UNIT - 1)",
        "_GROUPS * _LANES * _UNIT",
        COUNTING,
    ),
    Mutation(
        "a compiled kernel takes the first candidates for every part",
        "kgc/engine/compiled.py",
        "compiled(query, columns, place)",
        "compiled(query, candidate[: len(columns)], place)",
        PROJECTED,
    ),
    Mutation(
        "head queries see candidates through the lens of tail queries",
        "kgc/models/base.py",
        "torch.where((number % 2 == 1).unsqueeze(-1), head, tail)",
        "torch.where((number % 2 == 2).unsqueeze(-1), head, tail)",
        PROJECTED,
    ),
    Mutation(
        "query vectors made ahead are those of the last span",
        "kgc/engine/certified.py",
        "self._vectors[start - self._start : stop - self._start]",
        "self._vectors[: stop - start]",
        ("tests/engine/test_exact_queries_ahead.py",),
    ),
    Mutation(
        "tied documents are ordered the wrong way round",
        "kgc/engine/ties.py",
        "priority[entity] > priority[target[at]]",
        "priority[entity] < priority[target[at]]",
        ("tests/tasks/test_retrieval.py",),
    ),
    Mutation(
        "ties are looked for beside the last block",
        "kgc/engine/ties.py",
        "(query.float(), first, stop)[:, start - first :]",
        "(query.float(), first, stop)[:, : stop - start]",
        ("tests/tasks/test_retrieval.py",),
    ),
    # Metrics.
    Mutation(
        "the realistic rank is the optimistic one",
        "kgc/types.py",
        "self.better.double() + self.equal.double() / 2 + 1",
        "self.better.double() + 1",
        ("tests/test_types.py",),
    ),
    Mutation(
        "metrics without a prefix are the optimistic ones",
        "kgc/metrics/ranks.py",
        'basic("", realistic)',
        'basic("", counts.optimistic)',
        RANKS,
    ),
    Mutation("Hits@K leaves K out", "kgc/metrics/ranks.py", "return mean(ranks <= k)", "return mean(ranks < k)", RANKS),
    Mutation(
        "MRR is the reciprocal of the mean rank",
        "kgc/metrics/ranks.py",
        "return mean(1 / ranks.double())",
        "return 1 / mean(ranks.double()) if len(ranks) else math.nan",
        RANKS,
    ),
    Mutation(
        "the mean rank of a side is that of the other",
        "kgc/metrics/ranks.py",
        "realistic[side == s])",
        "realistic[side != s])",
        RANKS,
    ),
    Mutation(
        "queries that were never ranked are forgotten",
        "kgc/metrics/filtered_rank.py",
        "if missing:",
        "if missing == len(counts):",
        ("tests/metrics/test_filtered_rank.py",),
    ),
    Mutation(
        "recall is the share of the answers found",
        "kgc/metrics/answers.py",
        "torch.bincount(answers.query[relevant], minlength",
        "torch.bincount(answers.query[relevant & found], minlength",
        ANSWERS,
    ),
    Mutation(
        "MRR@K takes place K + 1 in",
        "kgc/metrics/answers.py",
        "value[groups.start[first] >= k] = 0.0",
        "value[groups.start[first] > k] = 0.0",
        ANSWERS,
    ),
    Mutation(
        "NDCG@K compares with the ideal list beyond K",
        "kgc/metrics/answers.py",
        "ideal if k is None else torch.where(place < k, ideal, 0.0)",
        "ideal",
        ANSWERS,
    ),
    # Sampling.
    Mutation(
        "the last entity is never a negative",
        "kgc/sampling/proposals.py",
        "torch.randint(self.num_entities, shape",
        "torch.randint(self.num_entities - 1, shape",
        PROPOSALS,
    ),
    Mutation(
        "an entity of no weight is drawn at the end of the table",
        "kgc/sampling/proposals.py",
        "point * self.cumulative[-1], right=True)",
        "point * self.cumulative[-1])",
        PROPOSALS,
    ),
    Mutation(
        "the mask of negatives knows test",
        "kgc/sampling/sampler.py",
        'KnownAnswers(graph.stored("train").to(device)',
        "KnownAnswers(Triples.cat([graph.train, graph.valid, graph.test]).to(device)",
        SAMPLER,
    ),
    Mutation(
        "the mask forgets what the proposal marks",
        "kgc/sampling/sampler.py",
        "known = known if negatives.known is None else known | negatives.known",
        "known = known if negatives.known is None else known & negatives.known",
        (*PROPOSALS, *SAMPLER),
    ),
    Mutation(
        "known answers have weight as negatives",
        "kgc/sampling/sampler.py",
        "return flat.masked_fill(known, -torch.inf).softmax(-1).nan_to_num(0.0)",
        "return flat.masked_fill(known, 0.0).softmax(-1)",
        SAMPLER,
    ),
    Mutation(
        "Bernoulli corrupts the wrong end",
        "kgc/sampling/sides.py",
        "(tph / (tph + hpt))",
        "(hpt / (tph + hpt))",
        ("tests/sampling/test_sides.py",),
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutations; all where none is named")
    names = parser.parse_args().names
    if unknown := set(names) - {mutation.name for mutation in MUTATIONS}:
        known = "\n".join(mutation.name for mutation in MUTATIONS)
        parser.error(f"no mutation {', '.join(map(repr, sorted(unknown)))}; there are:\n{known}")
    missed = 0
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        began = _processor_seconds()
        test = caught_by(mutation)
        seconds = _processor_seconds() - began
        missed += test is None
        print(f"{mutation.name} | {mutation.file} | {test or 'NOT CAUGHT'} | {seconds:.0f} s", flush=True)
    return 1 if missed else 0


def caught_by(mutation: Mutation) -> str | None:
    """The test that fails first on a copy of the repository with the mutation; None if all pass.

    Raises:
        SystemExit: the text to be replaced does not occur exactly once, or the tests did not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in FOLDERS:
            shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in REPOSITORY.iterdir():
            if path.is_file() and path.name != ".git":  # that of a worktree is a file
                shutil.copy(path, copy)
        source = copy / mutation.file
        text = source.read_text()
        if (times := text.count(mutation.old)) != 1:
            raise SystemExit(f"{mutation.name}: {mutation.file} has {mutation.old!r} {times} times, expected once")
        source.write_text(text.replace(mutation.old, mutation.new))
        environment = os.environ | {"PYTHONPATH": str(copy)}  # before an installed kgc
        where = _run(["-c", "import kgc; print(kgc.__file__)"], copy, environment).stdout.strip()
        if not Path(where).resolve().is_relative_to(copy.resolve()):
            raise SystemExit(f"{where}: tests would import this kgc, not the mutated one in {copy}")
        tests = _run(["-m", "pytest", "-x", "-q", "-n0", *mutation.tests], copy, environment)
    if tests.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::[^\[\s]+)", tests.stdout, re.MULTILINE)
    if tests.returncode != 1 or failed is None:  # a mutation that cannot be imported says nothing about the tests
        raise SystemExit(f"{mutation.name}: the tests did not run\n{tests.stdout[-3000:]}{tests.stderr[-3000:]}")
    return failed[1]


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def _processor_seconds() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
