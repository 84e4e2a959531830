"""Brute force in plain Python: what the tensors of `kgc` must agree with.

Nothing here uses torch. Scores are Python floats or integers, a score function is called once per triple, ranks are
counted in a loop, and metrics are exact fractions that are rounded once at the end.
"""

from __future__ import annotations

import cmath
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

HEAD, TAIL = 0, 1

Triple = tuple[int, int, int]
Score = Callable[[int, int, int], float]
Vector = Sequence[float]

# Ranks.


@dataclass(frozen=True)
class Rank:
    """How one right answer did: rivals that beat it, rivals that tie with it, competitors including itself."""

    better: int
    equal: int
    candidates: int
    nonfinite: int = 0

    def under(self, rule: str) -> Fraction:
        """The rank under a tie rule."""
        first, last = self.better + 1, self.better + self.equal + 1
        return {"optimistic": Fraction(first), "pessimistic": Fraction(last), "realistic": Fraction(first + last, 2)}[
            rule
        ]

    def places(self) -> range:
        """Every place the answer can take when ties are broken, all equally likely."""
        return range(self.better + 1, self.better + self.equal + 2)


def replaced(triple: Triple, side: int, entity: int) -> Triple:
    head, relation, tail = triple
    return (entity, relation, tail) if side == HEAD else (head, relation, entity)


def target(triple: Triple, side: int) -> int:
    return triple[0] if side == HEAD else triple[2]


def rank(score: Score, triple: Triple, side: int, known: Iterable[Triple], num_entities: int) -> Rank:
    """Filtered rank of the `side` end of a triple: corruptions in `known` do not compete, the triple itself does.

    NaN and infinite rivals compete but never beat and never tie. A target without a finite score loses to everyone.
    """
    known = set(known)
    own = score(*triple)
    better = equal = nonfinite = 0
    candidates = 1
    for entity in range(num_entities):
        rival = replaced(triple, side, entity)
        if entity == target(triple, side) or rival in known:
            continue
        candidates += 1
        value = score(*rival)
        nonfinite += not math.isfinite(value)
        better += math.isfinite(value) and value > own
        equal += math.isfinite(value) and value == own
    if not math.isfinite(own):
        return Rank(candidates - 1, 0, candidates, nonfinite + 1)
    return Rank(better, equal, candidates, nonfinite)


def ranks(score: Score, triples: Sequence[Triple], splits: Sequence[Iterable[Triple]], num_entities: int) -> list[Rank]:
    """Ranks of all heads, then of all tails, filtered by the union of the splits (none: unfiltered)."""
    known = {triple for split in splits for triple in split}
    return [rank(score, triple, side, known, num_entities) for side in (HEAD, TAIL) for triple in triples]


# Metrics, of ranks as fractions.


def average(values: Iterable[Fraction | int]) -> Fraction:
    values = list(values)
    return sum(values, Fraction(0)) / len(values)


def mean_reciprocal_rank(places: Sequence[Fraction]) -> Fraction:
    return average(1 / Fraction(place) for place in places)


def hits_at(places: Sequence[Fraction], k: int) -> Fraction:
    return average(Fraction(place <= k) for place in places)


def adjusted_mean_rank(results: Sequence[Rank]) -> Fraction:
    """Mean rank over the mean rank of a scorer that knows nothing, whose place is uniform on 1 … candidates."""
    chance = average(average(range(1, result.candidates + 1)) for result in results)
    return average(result.under("realistic") for result in results) / chance


def adjusted_mean_rank_index(results: Sequence[Rank]) -> Fraction:
    """1 minus the mean number of rivals ahead, over that number for a scorer that knows nothing."""
    chance = average(average(range(result.candidates)) for result in results)
    return 1 - average(result.under("realistic") - 1 for result in results) / chance


VALUES: dict[str, Callable[[Fraction, int], Fraction]] = {
    "mr": lambda rank, _: Fraction(rank),
    "mrr": lambda rank, _: 1 / Fraction(rank),
    "hits": lambda rank, k: Fraction(rank <= k),
}


@functools.cache
def moments(metric: str, candidates: int, k: int) -> tuple[Fraction, Fraction]:
    """Mean and variance of a metric over the ranks 1 … candidates, each as likely as any other."""
    values = [VALUES[metric](Fraction(rank), k) for rank in range(1, candidates + 1)]
    return average(values), average(x * x for x in values) - average(values) ** 2


def in_relation_to_chance(results: Sequence[Rank], hits: Sequence[int]) -> dict[str, Fraction | float]:
    """Adjusted and standardised metrics."""
    values: dict[str, Fraction | float] = {}
    for metric, k in [("mr", 0), ("mrr", 0), *(("hits", k) for k in hits)]:
        name = f"hits@{k}" if k else metric
        chances = [moments(metric, result.candidates, k) for result in results]
        expected, spread = average(mean for mean, _ in chances), sum(variance for _, variance in chances)
        got = average(VALUES[metric](result.under("realistic"), k) for result in results)
        if metric != "mr" and expected != 1:
            values[f"adjusted_{name}"] = (got - expected) / (1 - expected)
        if spread:
            z = float(got - expected) / math.sqrt(spread / len(results) ** 2)
            values[f"z_{name}"] = -z if metric == "mr" else z
    return values


def metrics(results: Sequence[Rank], sides: Sequence[int], hits: Sequence[int]) -> dict[str, float]:
    """Every metric of a split, from the definitions; a side without queries has none."""

    def basic(prefix: str, places: Sequence[Fraction]) -> dict[str, Fraction]:
        if not places:
            return {}
        values = {f"{prefix}mrr": mean_reciprocal_rank(places), f"{prefix}mr": average(places)}
        return values | {f"{prefix}hits@{k}": hits_at(places, k) for k in hits}

    realistic = [result.under("realistic") for result in results]
    values = basic("", realistic)
    for name, side in (("head", HEAD), ("tail", TAIL)):
        values |= basic(f"{name}/", [place for place, s in zip(realistic, sides, strict=True) if s == side])
    for rule in ("optimistic", "pessimistic"):
        values |= basic(f"{rule}/", [result.under(rule) for result in results])
    values["expected/mrr"] = average(mean_reciprocal_rank(result.places()) for result in results)
    values |= {f"expected/hits@{k}": average(hits_at(result.places(), k) for result in results) for k in hits}
    values |= {
        f"mrr@{k}": average(1 / Fraction(place) if place <= k else Fraction(0) for place in realistic) for k in hits
    }
    if results:
        values["median_rank"] = statistics.median(realistic)
        values["geometric_mean_rank"] = math.exp(average(math.log(place) for place in realistic))
    values |= in_relation_to_chance(results, hits)
    values["amr"] = adjusted_mean_rank(results)
    if any(result.candidates > 1 for result in results):
        values["amri"] = adjusted_mean_rank_index(results)
    values["num_queries"] = Fraction(len(results))
    values["num_tied"] = Fraction(sum(result.equal > 0 for result in results))
    values["num_nonfinite"] = Fraction(sum(result.nonfinite > 0 for result in results))
    return {name: float(value) for name, value in values.items()}


# Scores of one triple of vectors, from the papers.


def halves(vector: Vector) -> list[complex]:
    """[real half | imaginary half] as complex numbers."""
    n = len(vector) // 2
    return [complex(vector[i], vector[n + i]) for i in range(n)]


def distmult(h: Vector, r: Vector, t: Vector) -> float:
    """Σ hᵢ rᵢ tᵢ (Yang et al. 2015, eq. 2 with a diagonal M)."""
    return sum(a * b * c for a, b, c in zip(h, r, t, strict=True))


def complex_(h: Vector, r: Vector, t: Vector) -> float:
    """Re Σ hᵢ rᵢ t̄ᵢ (Trouillon et al. 2016, eq. 9), in complex numbers."""
    terms = zip(halves(h), halves(r), halves(t), strict=True)
    return sum((a * b * c.conjugate() for a, b, c in terms), 0j).real


def transe_l1(h: Vector, r: Vector, t: Vector) -> float:
    """−‖h + r − t‖₁ (Bordes et al. 2013)."""
    return -sum(abs(a + b - c) for a, b, c in zip(h, r, t, strict=True))


def transe_l2(h: Vector, r: Vector, t: Vector) -> float:
    """−‖h + r − t‖₂ (Bordes et al. 2013)."""
    return -math.hypot(*(a + b - c for a, b, c in zip(h, r, t, strict=True)))


def rotate(h: Vector, r: Vector, t: Vector) -> float:
    """−Σ |hᵢ e^{iθᵢ} − tᵢ| (Sun et al. 2019, eq. 3), the norm of the vector of moduli being L1 as in their code."""
    terms = zip(halves(h), r, halves(t), strict=True)
    return -sum(abs(a * cmath.exp(1j * phase) - b) for a, phase, b in terms)


def rotate_l2(h: Vector, r: Vector, t: Vector) -> float:
    """−√Σ |hᵢ e^{iθᵢ} − tᵢ|², the norm that PyKEEN takes."""
    terms = zip(halves(h), r, halves(t), strict=True)
    return -math.sqrt(sum(abs(a * cmath.exp(1j * phase) - b) ** 2 for a, phase, b in terms))


def transh(h: Vector, r: Vector, t: Vector) -> float:
    """−‖h⊥ + d − t⊥‖₂ with e⊥ = e − (w·e) w and ‖w‖ = 1 (Wang et al. 2014); r is [d | w], w of any length."""
    n = len(r) // 2
    length = math.hypot(*r[n:])
    normal = [w / length for w in r[n:]]

    def on_plane(e: Vector) -> list[float]:
        along = sum(w * x for w, x in zip(normal, e, strict=True))
        return [x - along * w for w, x in zip(normal, e, strict=True)]

    return transe_l2(on_plane(h), r[:n], on_plane(t))


def turned(e: Vector, phases: Vector, reflected: bool = False) -> list[float]:
    """The 2×2 matrices of Chami et al. 2020, eq. 3 and 4, on the pairs (eᵢ, e₍ᵢ₊ₙ₎)."""
    n, sign = len(phases), -1.0 if reflected else 1.0
    first, second = [], []
    for x, y, phase in zip(e[:n], e[n:], phases, strict=True):
        first.append(math.cos(phase) * x - sign * math.sin(phase) * y)
        second.append(math.sin(phase) * x + sign * math.cos(phase) * y)
    return first + second


def attended(e: Vector, own: Vector) -> list[float]:
    """Softmax-weighted mean of the rotated and the reflected vector; own is [phases | phases | attention]."""
    n = len(e) // 2
    images = [turned(e, own[:n]), turned(e, own[n : 2 * n], reflected=True)]
    weights = softmax([sum(a * x for a, x in zip(own[2 * n :], image, strict=True)) for image in images])
    return [sum(w * image[i] for w, image in zip(weights, images, strict=True)) for i in range(2 * n)]


def isometric(turn: Callable[[Vector, Vector], list[float]]) -> Callable[[Vector, Vector, Vector], float]:
    """−‖turn(h) + r − t‖² + b_h + b_t of [vector | bias] and [translation | own] (Chami et al. 2020)."""

    def score(h: Vector, r: Vector, t: Vector) -> float:
        n = len(h) - 1
        return h[n] + t[n] - transe_l2(turn(h[:n], r[n:]), r[:n], t[:n]) ** 2

    return score


# The Poincaré ball of curvature −c (Ganea et al. 2018), by its own formulas on points.


def exp0(v: Vector, c: float) -> list[float]:
    size = math.sqrt(c) * math.hypot(*v)
    return [x * math.tanh(size) / size for x in v]


def ball_sum(x: Vector, y: Vector, c: float) -> list[float]:
    """Möbius addition x ⊕ y."""
    xy, xx, yy = (sum(a * b for a, b in zip(p, q, strict=True)) for p, q in ((x, y), (x, x), (y, y)))
    divisor = 1 + 2 * c * xy + c * c * xx * yy
    return [((1 + 2 * c * xy + c * yy) * a + (1 - c * xx) * b) / divisor for a, b in zip(x, y, strict=True)]


def ball_distance(x: Vector, y: Vector, c: float) -> float:
    """(2/√c) artanh(√c ‖−x ⊕ y‖)."""
    return 2 / math.sqrt(c) * math.atanh(math.sqrt(c) * math.hypot(*ball_sum([-a for a in x], y, c)))


def hyperbolic(turn: Callable[[Vector, Vector], list[float]]) -> Callable[[Vector, Vector, Vector], float]:
    """−d(turn(h) ⊕ r, t)² + b_h + b_t of [vector | bias] and [translation | own | raw c] (Chami et al. 2020)."""

    def score(h: Vector, r: Vector, t: Vector) -> float:
        n, c = len(h) - 1, softplus(r[-1])
        head = turn(exp0(h[:n], c), r[n:-1])
        return h[n] + t[n] - ball_distance(ball_sum(head, exp0(r[:n], c), c), exp0(t[:n], c), c) ** 2

    return score


def atth(h: Vector, r: Vector, t: Vector) -> float:
    """Attention is of tangent vectors, so that the mean of both images is one too."""
    n, c = len(h) - 1, softplus(r[-1])
    head = exp0(attended(h[:n], r[n:-1]), c)
    return h[n] + t[n] - ball_distance(ball_sum(head, exp0(r[:n], c), c), exp0(t[:n], c), c) ** 2


def reflected(e: Vector, phases: Vector) -> list[float]:
    return turned(e, phases, reflected=True)


def rescal(h: Vector, r: Vector, t: Vector) -> float:
    """hᵀ M t, M row by row (Nickel et al. 2011)."""
    n = len(h)
    return sum(h[i] * r[n * i + j] * t[j] for i in range(n) for j in range(n))


def cp(h: Vector, r: Vector, t: Vector) -> float:
    """Σ hᵢ rᵢ tᵢ of the head's vector as head and the tail's as tail; entities are [as head | as tail]."""
    n = len(r)
    return distmult(h[:n], r, t[n:])


def simple(h: Vector, r: Vector, t: Vector) -> float:
    """½ (⟨hₕ, r, tₜ⟩ + ⟨tₕ, r⁻¹, hₜ⟩) (Kazemi & Poole 2018, section 4)."""
    n = len(r) // 2
    return (cp(h, r[:n], t) + cp(t, r[n:], h)) / 2


def hole(h: Vector, r: Vector, t: Vector) -> float:
    """Σₖ rₖ Σᵢ hᵢ t₍ₖ₊ᵢ₎ (Nickel et al. 2016, eqs. 2 and 3)."""
    n = len(h)
    return sum(r[k] * sum(h[i] * t[(k + i) % n] for i in range(n)) for k in range(n))


def quate(h: Vector, r: Vector, t: Vector) -> float:
    """(h ⊗ r/|r|) · t (Zhang et al. 2019, eq. 9), as a product of complex matrices.

    w + xi + yj + zk is [[w + xi, y + zi], [−y + zi, w − xi]].
    """
    total, n = 0.0, len(h) // 4
    for m in range(n):
        (a, b), (c, d) = ((complex(v[m], v[n + m]), complex(v[2 * n + m], v[3 * n + m])) for v in (h, r))
        length = math.hypot(*r[m::n])
        first, second = (a * c - b * d.conjugate()) / length, (a * d + b * c.conjugate()) / length
        total += first.real * t[m] + first.imag * t[n + m] + second.real * t[2 * n + m] + second.imag * t[3 * n + m]
    return total


def analogy(h: Vector, r: Vector, t: Vector) -> float:
    """Σ hᵢ rᵢ tᵢ of the real half and Re Σ hᵢ rᵢ t̄ᵢ of the complex half (Liu et al. 2017)."""
    n = len(h) // 2
    return distmult(h[:n], r[:n], t[:n]) + complex_(h[n:], r[n:], t[n:])


def toruse(h: Vector, r: Vector, t: Vector) -> float:
    """−Σ of the shorter ways round a circle of circumference 1 (Ebisu & Ichise 2018, d_L1)."""
    total = 0.0
    for a, b, c in zip(h, r, t, strict=True):
        way = (a + b - c) % 1.0
        total += min(way, 1.0 - way)
    return -total


def protate(h: Vector, r: Vector, t: Vector) -> float:
    """−Σ |C e^{i(h + r)} − C e^{it}| (Sun et al. 2019, section 4.3), C = 0.05 as in the config."""
    return -sum(0.05 * abs(cmath.exp(1j * (a + b)) - cmath.exp(1j * c)) for a, b, c in zip(h, r, t, strict=True))


def pairre(h: Vector, r: Vector, t: Vector) -> float:
    """−‖h ∘ rᴴ − t ∘ rᵀ‖₁ of entities of length 1 (Chao et al. 2021, eq. 2)."""
    n = len(h)
    head, tail = math.hypot(*h), math.hypot(*t)
    return -sum(abs(h[i] / head * r[i] - t[i] / tail * r[n + i]) for i in range(n))


def transr(h: Vector, r: Vector, t: Vector) -> float:
    """−‖M h + r − M t‖₂ (Lin et al. 2015, eqs. 7 and 8), r being [translation | M row by row]."""
    n = len(h)
    k = len(r) // (n + 1)

    def seen(e: Vector) -> list[float]:
        return [sum(r[k + n * i + j] * e[j] for j in range(n)) for i in range(k)]

    return transe_l2(seen(h), r[:k], seen(t))


def transd(h: Vector, r: Vector, t: Vector) -> float:
    """−‖M_h h + r − M_t t‖₂ with M_e = rₚ eₚᵀ + I (Ji et al. 2015, eqs. 11 to 15)."""
    n = len(r) // 2

    def seen(e: Vector) -> list[float]:
        matrix = [[r[n + i] * e[n + j] + (i == j) for j in range(n)] for i in range(n)]
        return [sum(matrix[i][j] * e[j] for j in range(n)) for i in range(n)]

    return transe_l2(seen(h), r[:n], seen(t))


def hake(h: Vector, r: Vector, t: Vector) -> float:
    """−(μ d_modulus + λ d_phase) with the mixture bias (Zhang et al. 2020, section 3), μ = 1 and λ = 0.1.

    The modulus part is (1 − b) times that of eq. 3, as in the authors' code.
    """
    n = len(h) // 2
    moduli, phases = [], []
    for i in range(n):
        size = abs(r[i])
        bias = max(min(r[2 * n + i], 1.0), -size)
        moduli.append(h[i] * (size + bias) - t[i] * (1 - bias))
        phases.append(abs(math.sin((h[n + i] + r[n + i] - t[n + i]) / 2)))
    return -(math.hypot(*moduli) + 0.1 * sum(phases))


def to_box(x: float, centre: float, width: float) -> float:
    """Abboud et al. 2020, section 4: the distance of a coordinate to an interval."""
    away = abs(x - centre)
    if centre - width / 2 <= x <= centre + width / 2:
        return away / (width + 1)
    return away * (width + 1) - width / 2 * (width + 1 - 1 / (width + 1))


def boxe(h: Vector, r: Vector, t: Vector) -> float:
    """−(‖dist(e_h + b_t, box 1)‖₁ + ‖dist(e_t + b_h, box 2)‖₁), r being [centres 1, 2 | widths 1, 2]."""
    n = len(h) // 2
    total = 0.0
    for i in range(n):
        total += to_box(h[i] + t[n + i], r[i], abs(r[2 * n + i]))
        total += to_box(t[i] + h[n + i], r[n + i], abs(r[3 * n + i]))
    return -total


def mure(h: Vector, r: Vector, t: Vector) -> float:
    """−d(R h, t + r)² + b_h + b_t (Balažević et al. 2019, eq. 5), entities being [vector | as head | as tail]."""
    n = len(r) // 2
    square = sum((r[i] * h[i] - (t[i] + r[n + i])) ** 2 for i in range(n))
    return -square + h[n] + t[n + 1]


FORMULAS: dict[str, Callable[[Vector, Vector, Vector], float]] = {
    "toruse": toruse,
    "protate": protate,
    "pairre": pairre,
    "transr": transr,
    "transd": transd,
    "hake": hake,
    "boxe": boxe,
    "mure": mure,
    "rescal": rescal,
    "cp": cp,
    "simple": simple,
    "hole": hole,
    "quate": quate,
    "analogy": analogy,
    "distmult": distmult,
    "complex": complex_,
    "transe_l1": transe_l1,
    "transe_l2": transe_l2,
    "rotate": rotate,
    "rotate_l1": rotate,
    "rotate_l2": rotate_l2,
    "transh": transh,
    "rote": isometric(turned),
    "refe": isometric(reflected),
    "atte": isometric(attended),
    "roth": hyperbolic(turned),
    "refh": hyperbolic(reflected),
    "atth": atth,
}


# Scores that need more than three vectors: weights, by name as nested lists; `h` and `t` may end in a bias.

Weights = dict[str, Sequence]


def tucker(h: Vector, r: Vector, t: Vector, w: Weights) -> float:
    """Σ W_kij hᵢ rₖ tⱼ (Balažević et al. 2019, eq. 3), the core's first index being the relation's."""
    core, indices = w["core"], range(len(h))
    return sum(core[k][i][j] * h[i] * r[k] * t[j] for k in range(len(r)) for i in indices for j in indices)


def linear(weight: Sequence[Vector], bias: Vector, x: Vector) -> list[float]:
    return [b + sum(w * v for w, v in zip(row, x, strict=True)) for row, b in zip(weight, bias, strict=True)]


def normalised(w: Weights, name: str, channel: int, x: float) -> float:
    """Batch normalisation in evaluation mode."""
    mean, var, scale, shift = (
        w[f"{name}.{part}"][channel] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / math.sqrt(var + 1e-5) * scale + shift


def conve(h: Vector, r: Vector, t: Vector, w: Weights) -> float:
    """⟨relu(W vec(relu([h̄; r̄] * ω))), t⟩ + b_t with batch normalisation (Dettmers et al. 2018), vectors in one row."""
    n = len(r)
    image = [[normalised(w, "network.image.0", 0, x) for x in row] for row in (h[:n], r)]
    filters, shifts = w["network.image.2.weight"], w["network.image.2.bias"]
    size = len(filters[0][0])
    features = []
    for channel, ((kernel,), shift) in enumerate(zip(filters, shifts, strict=True)):
        for i in range(2 - size + 1):
            for j in range(n - size + 1):
                cells = [(a, b) for a in range(size) for b in range(size)]
                x = shift + sum(kernel[a][b] * image[i + a][j + b] for a, b in cells)
                features.append(max(0.0, normalised(w, "network.image.3", channel, x)))
    hidden = linear(w["network.image.7.weight"], w["network.image.7.bias"], features)
    out = [max(0.0, normalised(w, "network.image.9", i, x)) for i, x in enumerate(hidden)]
    return t[n] + sum(x * y for x, y in zip(out, t[:n], strict=True))


def layer_norm(w: Weights, name: str, x: Vector) -> list[float]:
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) / len(x) + 1e-5)
    return [(v - mean) / spread * a + b for v, a, b in zip(x, w[f"{name}.weight"], w[f"{name}.bias"], strict=True)]


def attention(w: Weights, name: str, tokens: list[list[float]], heads: int) -> list[list[float]]:
    """Multi-head attention of tokens to one another (Vaswani et al. 2017)."""
    n = len(tokens[0])
    size = n // heads
    mixed = [linear(w[f"{name}.attention.weight"], w[f"{name}.attention.bias"], x) for x in tokens]
    out = []
    for asking in mixed:
        joined: list[float] = []
        for start in range(0, n, size):
            query = asking[start : start + size]
            keys = [m[n + start : n + start + size] for m in mixed]
            shares = softmax([sum(a * b for a, b in zip(query, k, strict=True)) / math.sqrt(size) for k in keys])
            values = [m[2 * n + start : 2 * n + start + size] for m in mixed]
            joined += [sum(s * v[i] for s, v in zip(shares, values, strict=True)) for i in range(size)]
        out.append(linear(w[f"{name}.joined.weight"], w[f"{name}.joined.bias"], joined))
    return out


def hitter(h: Vector, r: Vector, t: Vector, w: Weights, heads: int = 2) -> float:
    """⟨what a Transformer makes of [CLS] beside h and r, t⟩ (Chen et al. 2021)."""
    tokens = added([[0.0] * len(h), h, r], w["network.kinds"])
    layer = 0
    while (name := f"network.layers.{layer}") + ".inner.weight" in w:
        seen = attention(w, name, tokens, heads)
        tokens = [layer_norm(w, f"{name}.norm1", x) for x in added(tokens, seen)]
        inner = [linear(w[f"{name}.inner.weight"], w[f"{name}.inner.bias"], x) for x in tokens]
        inner = [[max(0.0, v) for v in x] for x in inner]
        outer = [linear(w[f"{name}.outer.weight"], w[f"{name}.outer.bias"], x) for x in inner]
        tokens = [layer_norm(w, f"{name}.norm2", x) for x in added(tokens, outer)]
        layer += 1
    return sum(a * b for a, b in zip(tokens[0], t, strict=True))


def added(first: Sequence[Vector], second: Sequence[Vector]) -> list[list[float]]:
    return [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(first, second, strict=True)]


def ermlp(h: Vector, r: Vector, t: Vector, w: Weights) -> float:
    """w·tanh(A [h; r; t] + b) (Dong et al. 2014, eq. 4)."""
    hidden = linear(w["hidden.weight"], w["hidden.bias"], [*h, *r, *t])
    return sum(a * math.tanh(x) for a, x in zip(w["output"], hidden, strict=True))


WEIGHTED: dict[str, Callable[[Vector, Vector, Vector, Weights], float]] = {
    "tucker": tucker,
    "conve": conve,
    "hitter": hitter,
    "ermlp": ermlp,
}


# Losses of one query, from their definitions with logarithms and exponentials that do not overflow.


def softplus(x: float) -> float:
    """log(1 + eˣ), which is −log σ(−x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    exponentials = [math.exp(value - top) for value in values]
    return [value / sum(exponentials) for value in exponentials]


def log_sum_exp(values: Sequence[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def negative_weights(logits: Sequence[float], known: Sequence[bool], temperature: float) -> list[float]:
    """Self-adversarial weights over the negatives that are not known answers (Sun et al. 2019, eq. 4)."""
    kept = [temperature * logit for logit, is_known in zip(logits, known, strict=True) if not is_known]
    if not kept:
        return [0.0] * len(known)
    shares = iter(softmax(kept))
    return [0.0 if is_known else next(shares) for is_known in known]


def logistic(positive: float, negatives: Sequence[float], weights: Sequence[float]) -> float:
    """Sun et al. 2019, eq. 5, halved as in their code: the mean of the positive and the negative part."""
    return (softplus(-positive) + sum(w * softplus(n) for w, n in zip(weights, negatives, strict=True))) / 2


# Numbers.


def gradient(function: Callable[[list[float]], float], point: Sequence[float], step: float = 1e-5) -> list[float]:
    """Central differences."""
    slopes = []
    for i in range(len(point)):
        up, down = list(point), list(point)
        up[i] += step
        down[i] -= step
        slopes.append((function(up) - function(down)) / (2 * step))
    return slopes


def chi_square(observed: Sequence[int], expected: Sequence[float]) -> float:
    """Pearson's statistic; the callers hold the critical values of a printed table."""
    return sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
