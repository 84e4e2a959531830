"""What large graphs would take on 1, 8 and 64 GPUs: computed from the formulae below, not measured.

    python tests/benchmarks/estimate.py

A model that scores by an inner product, D numbers an entity; row-wise Adagrad with sparse gradients; the entity table
cut over G GPUs; batches of positives with N negatives shared by the batch, both sides.

    memory of a device   4·E·(D + 1)/G for its rows and their accumulators, 12·T for int32 triples, 16·T for the index
    seconds an epoch     T/G · (12·N·D/(u·F) + 96·D/(W/2) + 32·D·(G − 1)/G/L)
    seconds of ranking   2·Q·E·D/(G·u·F), all Q queries against all E entities

12·N·D: 2 sides, a product forward and two backward, 2·N·D operations each. 96·D bytes: 2 sides, 2 rows of 4·D bytes,
moved about 6 times by look-up, gradient and update, at half the memory's rate because rows lie anywhere. 32·D bytes:
the same 4 rows there and their gradients back, over the links for the rows of other GPUs. Latency, imbalance and
reading are left out: a lower bound for a run that nothing holds up.
"""

from __future__ import annotations

DIM, NEGATIVES = 256, 1024
FLOPS, USE = 19.5e12, 0.6  # fp32 products a second of an A100 (TF32 is off in ranks), and the share that is reached
MEMORY = 2.0e12  # bytes a second of its memory
LINK = {1: float("inf"), 8: 100e9, 64: 12.5e9}  # bytes a second and GPU: NVLink within a machine, 100 Gbit/s between
GIB = 2**30
# Entities, train triples, test triples.
GRAPHS = {
    "Wikidata5M": (4_594_485, 20_614_279, 5_163),
    "ogbl-wikikg2": (2_500_604, 16_109_182, 598_543),
    "Freebase": (86_054_151, 304_727_650, 16_929_308),
}


def memory(entities: int, triples: int, gpus: int) -> float:
    """Bytes of a device."""
    return 4 * entities * (DIM + 1) / gpus + 28 * triples


def epoch(triples: int, gpus: int) -> float:
    """Seconds."""
    product = 12 * NEGATIVES * DIM / (USE * FLOPS)
    rows = 96 * DIM / (MEMORY / 2)
    exchange = 32 * DIM * (gpus - 1) / gpus / LINK[gpus]
    return triples / gpus * (product + rows + exchange)


def ranking(entities: int, test: int, gpus: int) -> float:
    """Seconds."""
    return 2 * (2 * test) * entities * DIM / (gpus * USE * FLOPS)


def main() -> None:
    print("| graph | GPUs | memory of each, GiB | seconds an epoch | seconds of the full filtered ranking |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, (entities, triples, test) in GRAPHS.items():
        for gpus in LINK:
            space, seconds = memory(entities, triples, gpus) / GIB, ranking(entities, test, gpus)
            ranked = f"{seconds:,.{2 if seconds < 10 else 0}f}"
            print(f"| {name} | {gpus} | {space:.1f} | {epoch(triples, gpus):.1f} | {ranked} |")


if __name__ == "__main__":
    main()
