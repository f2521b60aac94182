"""A set of candidates against a fitted mix: the set statistics, their null, their p-values, their power.

    rows of the mix, fitted | held out  ->  Mix  ->  draws of n held-out rows  ->  floor, p-values, what n can see

Every row becomes one line of a table (random features of its vector, cluster, domain, -log typicality), and a set is
the mean of its lines. A null draw is a mean of n lines too, so thousands of draws are one sparse product. Most of a
draw are held-out rows, and what they add depends on the mix and on n alone: it is kept, for the usual sizes with the
reference, and only what candidates add is left to sum.

What is drawn from what: the *floor* (distance that chance alone makes) draws from held-out rows; the *test* draws from
held-out rows and candidates together. That is a permutation test, exact for any statistic and any n. Drawing from the
held-out rows alone is not: its draws scatter less about the mix than new rows do, by the factor 1 - n / held-out, and
gave 8 % false alarms instead of 5 at n = 200 from 1,742 held-out rows (measured, 800 sets of 20 fits).
Both draw units, not rows: see `inference.draw_units`.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from promptkit import distances, gpu, inference

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from promptkit.inference import Floats, Joint

T = TypeVar("T")

STATISTICS = ("mmd_1", "mmd_1/2", "mmd_1/4", "jensen_shannon", "fisher")
FAMILIES = {"mix": STATISTICS[:4], "fidelity": STATISTICS[4:]}
ALPHA = 0.05  # below this typicality a prompt does not belong; below this p-value a set is no draw of the mix
N_FEATURES = 512  # columns per bandwidth: a whole orthogonal block for 256 dimensions, within 1-2 % of the exact MMD
FLOOR_DRAWS, NULL_DRAWS = 499, 1999  # of the floor; in each of the three batches of the test
KEPT_SIZES = 50, 100, 200  # of sets whose draws are stored with a reference
MAX_PAIRS = 16  # candidates per draw up to which what held-out rows add is stored
MAX_WHOLE = 512  # candidates up to which all rows of all draws are in memory: 12 MB, and some times that on the way
MAX_PAIRED = 128  # candidates up to which only squares are, and pairs with candidates are summed: quicker, and small
MAX_COVERED, COVERED_SEED = 2000, 0  # held-out rows that coverage looks at
MAX_NEAREST = 256  # of each such row's nearest others are kept: enough for the reach of sets of 6 and more
POWER_SIZES = (10, 20, 50, 100, 200, 500)
POWER_FEATURES, POWER_DRAWS, POWER_SETS, POWER_SEED = 128, 199, 100, 0
FOREIGN = 0.10, 0.25
CHANGES = "10 % foreign", "25 % foreign", "half repeated", "largest cluster missing"


@dataclass(frozen=True)
class Rows:
    """What the set statistics know of some rows; all arrays are aligned.

    X : float32 (n, d) unit rows;  clusters, domains : int64 (n,);  typicality : (n,), NaN where unknown;
    units : int64 (n,) near-duplicate groups;  weights : (n,) summing to one.
    """

    X: NDArray[np.float32]
    clusters: NDArray[np.int64]
    domains: NDArray[np.int64]
    typicality: Floats
    units: NDArray[np.int64]
    weights: Floats

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """Return some of the rows, weights summing to one again."""
        w = self.weights[rows]
        total = float(w.sum())
        w = w / total if total > 0 else np.full(len(w), 1.0 / len(w))
        return Rows(self.X[rows], self.clusters[rows], self.domains[rows], self.typicality[rows], self.units[rows], w)


class Mix:
    """The fitted side, turned into means once, and the held-out side, turned into a table once.

    `cluster_shares`, `domain_shares` are those of the whole mix, as the report prints them. `weighted` says that the
    mix counts rows by their weights (tokens): then null rows are drawn in proportion to them, with replacement.
    `device` is where the null draws of a score are summed: the same draws, within 1e-6 (`gpu`).
    """

    def __init__(
        self,
        fitted: Rows,
        held: Rows,
        *,
        cluster_shares: Floats,
        domain_shares: Floats,
        weighted: bool = False,
        n_features: int = N_FEATURES,
        seed: int = 0,
        learned: Mapping[str, NDArray[Any]] | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = device
        self.fitted, self.held, self.weighted, self.seed = fitted, held, weighted, seed
        self.cluster_shares, self.domain_shares = cluster_shares, domain_shares
        self.k, self.n_domains = len(cluster_shares), len(domain_shares)
        base = float(learned["base"][0]) if learned else distances.median_squared_distance(fitted.X)
        self.bandwidths2 = tuple(base * scale for scale in distances.BANDWIDTHS)
        self.features = distances.fourier(fitted.X.shape[1], self.bandwidths2, n_features=n_features, seed=0)
        self.width = self.features.width
        self.mean = np.asarray(learned["mean"]) if learned else self._mean()
        self._power = {int(row[0]): row[1:] for row in learned["power"]} if learned else {}
        self._kept: dict[str, tuple[Any, Any, Any]] = {}  # see `_once`
        self._learned = learned or {}
        self._nearest = np.asarray(learned["nearest"]) if learned else None
        self._within: dict[int, NDArray[np.int64]] = {}  # fitted rows in reach of each held-out one, by size of set
        self._summarise()
        self.fitted_shares = np.bincount(fitted.clusters, fitted.weights, minlength=self.k)
        self.held_table = self.table(held)
        self.n_units = len(np.unique(held.units))

    def learned(self) -> dict[str, NDArray[Any]]:
        """Return what depends on the mix alone and takes long: passed on, it makes the same `Mix` at once.

        "power" has a line (n, power of each of CHANGES) for each of POWER_SIZES, NaN where it is not known.
        """
        self.power(POWER_SIZES)
        power = np.array([[n, *self._power[n]] for n in POWER_SIZES])
        base = np.array([self.bandwidths2[0] / distances.BANDWIDTHS[0]])
        nearest = self._nearest_of(self._covered[0])
        return {"base": base, "mean": self.mean, "power": power, "nearest": nearest, **self._learned_draws()}

    def _learned_draws(self) -> dict[str, NDArray[Any]]:
        """Return the floor, and `own` or `lines` of the null, of sets of KEPT_SIZES, under hashes of the rows drawn.

        So other draws (of another seed, or of a NumPy whose generator gives other numbers) never find them.
        """
        found: dict[str, dict[int, NDArray[Any]]] = {"floor": {}, "own": {}, "lines": {}}
        for n in KEPT_SIZES:
            if self._is_stored(weights := np.full(n, 1.0 / n)) and 2 * n <= self.n_units:
                rng = np.random.default_rng([0, n])
                key = self._floor_key(self.draw_held(n, FLOOR_DRAWS, np.random.default_rng([0, n]))[0])
                found["floor"][key] = self._chance(weights, rng).to_array()
                null = self._draw(n, NULL_DRAWS, rng)
                for name, array in (("own", null.own), ("lines", null.lines)):
                    if array is not None:
                        found[name][_hash_of(null.rows)] = array
        out: dict[str, NDArray[Any]] = {}
        for name, arrays in found.items():
            if arrays:  # none for a mix too small for a set of any of these sizes
                out |= {f"{name}_of": np.array(list(arrays), dtype=np.uint64), name: _stack(list(arrays.values()))}
        return out

    def _find(self, name: str, key: int) -> NDArray[Any] | None:
        """Return what was stored under a key by `_learned_draws`, if it was."""
        if f"{name}_of" not in self._learned:
            return None
        at = np.flatnonzero(self._learned[f"{name}_of"] == np.uint64(key))
        return np.asarray(self._learned[name][at[0]]) if len(at) else None

    def _floor_key(self, rows: NDArray[np.int32]) -> int:
        return _hash_of(rows, self.domain_shares)  # candidates may bring domains that the mix has not

    def _mean(self) -> Floats:
        mean = np.zeros(len(self.bandwidths2) * self.width)
        for start in range(0, len(self.fitted), 4096):  # blocks: the features of 100,000 rows would be 600 MB
            block = slice(start, start + 4096)
            mean += self.fitted.weights[block] @ self.features(self.fitted.X[block]).astype(np.float64)
        return mean

    def table(self, rows: Rows) -> NDArray[np.float32]:
        """Return one line per row: features, cluster and domain as indicators, -log typicality, belongs."""
        n = len(rows)
        F = self.features(rows.X)
        out = np.zeros((n, F.shape[1] + self.k + self.n_domains + 2), dtype=np.float32)
        out[:, : F.shape[1]] = F
        out[np.arange(n), F.shape[1] + rows.clusters] = 1.0
        out[np.arange(n), F.shape[1] + self.k + rows.domains] = 1.0
        typicality = np.where(np.isnan(rows.typicality), 1.0, rows.typicality)
        out[:, -2] = -np.log(np.maximum(typicality, 1e-300))
        out[:, -1] = typicality >= ALPHA
        return out

    def _summarise(self) -> None:
        """Set `own` and `within`: the mean kernel of the fitted rows with and without a row's pair with itself."""
        squares = float(self.fitted.weights @ self.fitted.weights)
        self.own = [float((m * m).sum()) for m in self._blocks(self.mean[None])]
        self.within = [(o - squares) / (1.0 - squares) if squares < 1.0 else 1.0 for o in self.own]

    def _blocks(self, means: NDArray[Any]) -> list[NDArray[np.float64]]:
        w = self.width
        return [means[:, i * w : (i + 1) * w].astype(np.float64) for i in range(len(self.bandwidths2))]

    def shares_of(self, means: NDArray[Any]) -> tuple[Floats, Floats]:
        """Return the cluster and the domain shares of each set, from its mean line."""
        at = len(self.bandwidths2) * self.width
        P = means[:, at : at + self.k + self.n_domains].astype(np.float64)
        return P[:, : self.k], P[:, self.k :]

    def statistics(self, means: NDArray[Any], squares: float) -> Floats:
        """Return (sets, 5) in the order of STATISTICS; `squares` is the sum of a set's squared weights.

        Rounded, so that sets that are the same in another order are ties and not a coin toss in the last bit.
        """
        own = np.stack([(m * m).sum(axis=1) for m in self._blocks(means)], axis=1)
        mu = self._blocks(self.mean[None])
        cross = np.stack([m @ of_mix[0] for m, of_mix in zip(self._blocks(means), mu, strict=True)], axis=1)
        return self._statistics(own, cross, self.shares_of(means)[0], means[:, -2], squares)

    def _statistics(self, own: Floats, cross: Floats, P: Floats, odd: NDArray[Any], squares: float) -> Floats:
        """Return `statistics` of means of which only products are known: with themselves and with the mix."""
        out = np.empty((len(own), len(STATISTICS)))
        out[:, :3] = (own - squares) / (1.0 - squares) + self.within - 2.0 * cross
        q = self.fitted_shares
        half = 0.5 * (P + q)
        safe = np.where(half > 0, half, 1.0)
        bits = P * np.log2(np.where(P > 0, P, safe) / safe) + q * np.log2(np.where(q > 0, q, safe) / safe)
        out[:, 3] = 0.5 * bits.sum(axis=1)
        out[:, 4] = odd
        return np.round(out, 6)

    def distance(self, means: NDArray[Any]) -> Floats:
        """Return the MMD at the median bandwidth, pairs of a row with itself counted (V-statistic)."""
        m = self._blocks(means)[0]
        mu = self.mean[: self.width]
        return np.sqrt(np.maximum(0.0, (m * m).sum(axis=1) - 2.0 * (m @ mu) + self.own[0]))  # type: ignore[no-any-return]

    # ---------------------------------------------------------------------------------------- null draws

    def draw_held(self, n: int, draws: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], bool]:
        """Return (draws, n) held-out rows as chance would give them, and whether rows may repeat."""
        if self.weighted:
            return inference.draw_subsets(n, len(self.held), draws, rng=rng, probabilities=self.held.weights), True
        if 2 * n > self.n_units:  # too few for draws that share little: with replacement, corrected by the caller
            each = 1.0 / np.bincount(np.unique(self.held.units, return_inverse=True)[1])
            chance = each[np.unique(self.held.units, return_inverse=True)[1]]
            return inference.draw_subsets(n, len(self.held), draws, rng=rng, probabilities=chance), True
        return inference.draw_units(n, self.held.units, draws, rng=rng), False

    def chance(self, weights: Floats, rng: np.random.Generator) -> Chance:
        """Return what draws of as many held-out rows as there are candidates get, with the candidates' weights."""
        return self._once("chance", rng, weights, lambda: self._chance(weights, rng))

    def _once(self, what: str, rng: np.random.Generator, given: NDArray[Any], make: Callable[[], T]) -> T:
        """Return what `make` makes with the generator, or made the last time from the same state for the same `given`.

        So a second set of the same size finds all draws made. The generator is left as drawing leaves it.
        """
        key = given.tobytes(), repr(rng.bit_generator.state)
        found = self._kept.get(what)  # looked up once: another thread may score another set meanwhile
        if found is None or found[0] != key:
            made = make()
            found = self._kept[what] = key, made, rng.bit_generator.state
        _, kept, rng.bit_generator.state = found
        return kept

    def _chance(self, weights: Floats, rng: np.random.Generator) -> Chance:
        rows, repeats = self.draw_held(len(weights), FLOOR_DRAWS, rng)
        if self._is_stored(weights) and (stored := self._find("floor", self._floor_key(rows))) is not None:
            return Chance.from_array(stored)
        means = inference.weighted_means(rows, self.held_table, weights, rng=rng, device=self.device)
        squares = float(weights @ weights)
        distance = self.distance(means)
        excess2 = float(self.statistics(means, squares)[:, 0].mean()) if len(weights) > 1 else 0.0
        if repeats:
            # Rows drawn with replacement scatter about the held-out mean, and that about the mix: taken off once, but
            # never below what n independent rows must have, since one held-out mean may happen to lie close.
            scatter = 1.0 - self.within[0]
            twice = scatter * float(self.held.weights @ self.held.weights)
            least = scatter * (squares + float(self.fitted.weights @ self.fitted.weights))
            mean2 = float((distance**2).mean())
            distance = distance * math.sqrt(max(mean2 - twice, least) / mean2)
            excess2 = max(0.0, excess2 - twice)
        clusters, domains = self.shares_of(means)
        return Chance(
            distance=distance,
            excess2=excess2,
            mix_overlap=1.0 - 0.5 * np.abs(clusters - self.cluster_shares).sum(axis=1),
            domain_overlap=1.0 - 0.5 * np.abs(domains - self.domain_shares).sum(axis=1),
            belong=means[:, -1].astype(np.float64),
        )

    def test(
        self, table: NDArray[np.float32], weights: Floats, *, draws: int, rng: np.random.Generator,
        own: Floats | None = None,
    ) -> Joint:  # fmt: skip
        """Return the calibrated p-values of the candidates, given as their table; three batches of `draws`.

        `own` is what `begin` gave for the vectors of these candidates.
        """
        squares = float(weights @ weights)
        observed = self.statistics((weights.astype(np.float32) @ table)[None], squares)[0]
        null = self._null(weights, draws, rng)
        if isinstance(null, Drawn):
            own = self._own_of(null, table[:, : self._starts.stop]) if own is None else own
            values = self._statistics_of(null, table, own)
        else:
            with _threads() as pool:
                values = np.concatenate(list(pool.map(lambda x: self.statistics(x[0] + x[1] @ table, squares), null)))
        return inference.Ranking(np.split(values, 3), STATISTICS, FAMILIES).joint(observed)

    def draw(self, weights: Floats, draws: int, rng: np.random.Generator) -> Drawn | None:
        """Make all draws that `chance` and then `test` of a set with these weights need, and keep them."""
        self.chance(weights, rng)
        null = self._null(weights, draws, rng)
        return null if isinstance(null, Drawn) else None

    def begin(self, X: NDArray[np.float32], weights: Floats, draws: int, rng: np.random.Generator) -> Floats | None:
        """Return that part of `test` which takes longest and needs vectors alone; None where it has no such part."""
        null = self.draw(weights, draws, rng)
        return None if null is None else self._own_of(null, self.features(X))

    def _null(
        self, weights: Floats, draws: int, rng: np.random.Generator
    ) -> Drawn | list[tuple[NDArray[np.float32], Any]]:
        def make() -> Any:
            n = len(weights)
            whole = n <= MAX_WHOLE and self._is_plain(weights)
            return self._draw(n, draws, rng) if whole else self._draw_lines(weights, draws, rng)

        return self._once(f"null of {draws}", rng, weights, make)  # type: ignore[no-any-return]

    def _is_stored(self, weights: Floats) -> bool:
        """Return whether draws of a set with these weights are worth storing: small beside the mix, one weight."""
        return self._are_few(len(weights)) and self._is_plain(weights)

    def _is_plain(self, weights: Floats) -> bool:
        return not self.weighted and self.device == "cpu" and bool(np.ptp(weights) == 0)

    def _are_few(self, n: int) -> bool:
        return n * n <= MAX_PAIRS * (len(self.held) + n)

    def _null_rows(self, n: int, draws: int, rng: np.random.Generator) -> Iterator[NDArray[np.int32]]:
        """Yield the rows of three batches of draws in parts: held-out ones, and from len(held) on candidates."""
        units = np.concatenate([self.held.units, self.held.units.max(initial=0) + 1 + np.arange(n)])
        step = max(1, 2_000_000 // n)
        for start in (s for _ in range(3) for s in range(0, draws, step)):
            size = min(step, draws - start)
            yield self.draw_held(n, size, rng)[0] if self.weighted else inference.draw_units(n, units, size, rng=rng)

    def _draw(self, n: int, draws: int, rng: np.random.Generator) -> Drawn:
        """Return null draws of rows of one weight, and what held-out rows add, which mix, n and generator decide."""
        rows = np.concatenate(list(self._null_rows(n, draws, rng)))
        h = len(self.held)
        at = np.minimum(rows, h)  # behind the last row: nothing
        sums = [np.append(column, 0.0)[at].sum(axis=1) / n for column in self._lines(self.held_table).T]
        at = np.append(self.held.clusters, self.k)[at] + (self.k + 1) * np.arange(len(rows))[:, None]
        counts = np.bincount(at.ravel(), minlength=len(rows) * (self.k + 1)).reshape(len(rows), -1)
        del at
        pairs = n <= MAX_PAIRED and self._are_few(n)
        held = self._find("own" if pairs else "lines", _hash_of(rows))
        if held is None:  # filled in place: a list of parts and all of them joined would be twice the memory
            width = len(self._starts) if pairs else self._starts.stop
            held = np.empty((len(rows), width), dtype=np.float64 if pairs else np.float32)
            for start, means in self._held_means(rows):
                held[start : start + len(means)] = _squares(means, self._starts) if pairs else means
        draw, place = np.nonzero(rows >= h)
        own, lines = (held, None) if pairs else (None, held)
        who = rows[draw, place] - h
        return Drawn(rows, draw, who, own, lines, np.stack(sums, axis=1), counts[:, : self.k] / n)

    def _lines(self, table: NDArray[np.float32]) -> Floats:
        """Return (rows, 4): each row's product with the mean of the mix by bandwidth, and its -log typicality."""
        mu = self.mean.astype(np.float32)
        parts = [table[:, at : at + self.width] @ mu[at : at + self.width] for at in self._starts]
        return np.stack([*parts, table[:, -2]], axis=1).astype(np.float64)

    @property
    def _starts(self) -> range:
        return range(0, len(self.bandwidths2) * self.width, self.width)

    def _held_means(self, rows: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first of some draws, and (those draws, features): what held-out rows add to each mean."""
        from scipy.sparse import csr_matrix

        h, n = len(self.held), rows.shape[1]
        for start in range(0, len(rows), 2048):
            part = rows[start : start + 2048]
            held = part < h
            ends = np.append(0, held.sum(axis=1).cumsum())
            matrix = csr_matrix((np.full(ends[-1], 1.0 / n, np.float32), part[held], ends), shape=(len(part), h))
            yield start, _product(matrix, self.held_table[:, : self._starts.stop])

    def _statistics_of(self, null: Drawn, table: NDArray[np.float32], own: Floats) -> Floats:
        """Return the statistics of the null draws, with the candidates that are in them."""
        n, D, draw, who = len(table), len(null.rows), null.draw, null.who
        sums = null.sums + np.stack([np.bincount(draw, c[who], minlength=D) / n for c in self._lines(table).T], axis=1)
        cluster = table[:, self._starts.stop : self._starts.stop + self.k].argmax(axis=1)
        shares = null.shares + np.bincount(draw * self.k + cluster[who], minlength=D * self.k).reshape(D, -1) / n
        return self._statistics(own, sums[:, :-1], shares, sums[:, -1], 1.0 / n)

    def _own_of(self, null: Drawn, F: NDArray[np.float32]) -> Floats:
        """Return (draws, bandwidths): the squared length of each mean, with the candidates of features F in it."""
        return self._own_by_lines(null, F) if null.own is None else self._own_by_pairs(null, F)

    def _own_by_lines(self, null: Drawn, F: NDArray[np.float32]) -> Floats:
        """Return it from held-out rows' part of each mean."""
        from scipy.sparse import csr_matrix

        n, D, lines = len(F), len(null.rows), null.lines
        ends = np.searchsorted(null.draw, np.arange(D + 1))
        matrix = csr_matrix((np.full(ends[-1], 1.0 / n, np.float32), null.who, ends), shape=(D, n))
        F = np.ascontiguousarray(F)
        assert lines is not None

        def part(start: int) -> Floats:  # few at a time, which stay in the cache
            return _squares(lines[start : start + 128] + matrix[start : start + 128] @ F, self._starts)

        parts = range(0, D, 128)
        if len(null.who) < 1 << 18:  # soon done, and other threads have other work
            return np.concatenate([part(start) for start in parts])
        with _threads() as pool:
            return np.concatenate(list(pool.map(part, parts)))

    def _own_by_pairs(self, null: Drawn, F: NDArray[np.float32]) -> Floats:
        """Return it from the squared length of held-out rows' part, and pairs with a candidate."""
        n, h = len(F), len(self.held)
        order = np.argsort(null.who, kind="stable")
        draws_of = np.split(null.draw[order], np.searchsorted(null.who[order], np.arange(1, n)))

        # Of a candidate and any row of the pool, by bandwidth; with a held-out row a pair counts twice. Four float32
        # are taken as one complex128: one look-up for all bandwidths.
        pair = np.zeros((n, h + n, 4), dtype=np.float32)
        columns = [slice(at, at + self.width) for at in self._starts]
        twice = 2.0 * F

        def products(start: int) -> None:
            rows = slice(start, min(start + 1024, h))
            for b, some in enumerate(columns):
                pair[:, rows, b] = twice[:, some] @ self.held_table[rows, some].T

        def sums_of(start: int) -> list[NDArray[np.float32]]:
            lines = pair[start : start + 32].view(np.complex128)[:, :, 0]
            each = (line.take(null.rows[draws].T) for line, draws in zip(lines, draws_of[start:], strict=False))
            return [of_draws.view(np.float32).sum(axis=0).reshape(-1, 4) for of_draws in each]

        assert null.own is not None
        own: Floats = null.own.copy()
        with _threads() as pool:
            list(pool.map(products, range(0, h, 1024)))
            for b, some in enumerate(columns):
                pair[:, h:, b] = F[:, some] @ F[:, some].T
            found = [sums for part in pool.map(sums_of, range(0, n, 32)) for sums in part]
        for draws, of_draws in zip(draws_of, found, strict=True):
            own[draws] += of_draws[:, : own.shape[1]].astype(np.float64) / n**2
        return own

    def _draw_lines(
        self, weights: Floats, draws: int, rng: np.random.Generator
    ) -> list[tuple[NDArray[np.float32], Any]]:
        """Return the null draws in parts: what held-out rows add to each mean, and the weights of the candidates in it.

        They follow from the generator's state, the number of candidates and their weights alone.
        """
        from scipy.sparse import csr_matrix

        n, h = len(weights), len(self.held)
        equal = bool(np.ptp(weights) == 0)
        parts = []
        for rows in self._null_rows(n, draws, rng):
            size = len(rows)
            data = np.full(size * n, 1.0 / n, dtype=np.float32)
            if not equal:  # dealt to the rows of each line anew, since lines come sorted
                data = rng.permuted(np.tile(weights, (size, 1)), axis=1).ravel().astype(np.float32)
            matrix = csr_matrix((data, rows.ravel(), np.arange(0, size * n + 1, n)), shape=(size, h + n))
            of_held, of_candidates = _product(matrix[:, :h], self.held_table, self.device), matrix[:, h:]
            for at in range(0, size, 256):  # so few stay in the cache while their statistics are computed
                parts.append((of_held[at : at + 256], of_candidates[at : at + 256]))
        return parts

    # ---------------------------------------------------------------------------------------------- coverage

    def coverage(
        self, X: NDArray[np.float32], rng: np.random.Generator, *, in_fit: NDArray[np.bool_] | None = None
    ) -> tuple[float, tuple[float, float]]:
        """Return the share of held-out rows within reach of a candidate over what chance reaches, with its interval.

        `in_fit` (n,) marks candidates that the vector space was fitted on, such as those of a pack drawn from the mix.
        Such rows lie apart from all others (they own a part of the space), so chance is what fitted rows reach: else
        a perfect pack covers 0.73.
        """
        H, w = self._covered
        m, n = len(H), len(X)
        n_fit = 0 if in_fit is None else int(in_fit.sum())
        to_set = np.ascontiguousarray(np.round(H @ X.T, 5).T)

        def by_chance(size: int, reach: NDArray[Any]) -> float:
            old = round(size * n_fit / n)
            miss: Any = 1.0 - distances.chance_coverage(m, size - old, distances.reach_size(m, size))
            if old:
                # Of K fitted rows c are in reach: `old` of them, drawn without replacement, all miss. Unbiased in c.
                K = self._to_fit.shape[1]
                j = np.arange(K)
                all_miss = np.concatenate([[1.0], np.cumprod(np.maximum(K - min(old, K) - j, 0) / (K - j))])
                if size not in self._within:
                    self._within[size] = np.count_nonzero(self._to_fit >= reach[:, None], axis=1)
                miss = miss * all_miss[self._within[size]]
            return float(1.0 - (w @ miss if old else miss))

        reach = self._reaches(H, n)
        hit, chance = (to_set >= reach).any(axis=0), by_chance(n, reach)
        value = float(w @ hit) / chance
        if n < 4:
            return value, (math.nan, math.nan)
        shorter = self._reaches(H, n // 2)
        near, chance_of_half = np.packbits(to_set >= shorter, axis=1), by_chance(n // 2, shorter)

        def of_halves(halves: NDArray[np.int64]) -> Floats:
            reached = np.stack([np.bitwise_or.reduce(near[half], axis=0) for half in halves])
            return np.asarray(np.unpackbits(reached, axis=1, count=m) @ w / chance_of_half)

        # The held-out rows are a sample of the mix too: which of them are in reach is as good as their number.
        of_rows = float((w**2 * (hit - w @ hit) ** 2).sum()) / chance**2
        low, high = inference.half_sample(n, of_halves, centre=value, extra=of_rows, rng=rng)
        return value, (max(0.0, low), high)

    @cached_property
    def _to_fit(self) -> NDArray[np.float32]:
        """How near the rows that coverage looks at are to some of the fitted rows."""
        some = np.random.default_rng(self.seed).permutation(len(self.fitted))[:MAX_COVERED]
        return np.asarray(np.round(self._covered[0] @ self.fitted.X[np.sort(some)].T, 5))

    @cached_property
    def _covered(self) -> tuple[NDArray[np.float32], Floats]:
        """Return the held-out rows that coverage looks at, and their weights.

        One row per unit: a row's own near-duplicates would shrink its reach to what no other prompt can touch.
        """
        _, rows, unit = np.unique(self.held.units, return_index=True, return_inverse=True)
        w = np.bincount(unit, self.held.weights)
        if len(rows) > MAX_COVERED:
            kept = np.sort(np.random.default_rng(COVERED_SEED).permutation(len(rows))[:MAX_COVERED])
            rows, w = rows[kept], w[kept]
        w = w / w.sum() if w.sum() > 0 else np.full(len(w), 1.0 / len(w))
        return self.held.X[rows], np.asarray(w, dtype=np.float64)

    def _reaches(self, H: NDArray[np.float32], n: int) -> NDArray[Any]:
        """Return `distances.reaches` of the rows, out of their nearest others where these are known and enough."""
        if self._nearest is None:
            self._nearest = self._nearest_of(H)
        k = distances.reach_size(len(H), n)
        if k <= self._nearest.shape[1]:
            return self._nearest[:, k - 1]
        return distances.reaches(np.round(H @ H.T, 5), n)

    def _nearest_of(self, H: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the similarities of each row to its nearest others, the nearest first."""
        own = np.round(H @ H.T, 5)
        np.fill_diagonal(own, -np.inf)
        k = min(MAX_NEAREST, max(len(H) - 1, 1))
        return np.ascontiguousarray(-np.sort(-np.partition(own, len(own) - k, axis=1)[:, len(own) - k :], axis=1))

    # ------------------------------------------------------------------------------------------------- power

    def power(self, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """Return `n, change, power` for sets of each size: how often a change of the mix would be found at 5 %.

        Simulated on held-out rows, with fewer features and draws than the test itself takes: good to 5-10 points.
        Foreign prompts are rows whose typicality is replaced by one below 0.05, the mildest there are. None where the
        held-out part has fewer than 2 n units to draw from. Each size has draws of its own, so that what is stored of a
        mix is what any call would find.
        """
        small: Mix | None = None
        for n in (int(n) for n in sizes if int(n) not in self._power):
            found: dict[str, float | None] = dict.fromkeys(CHANGES)
            if 2 * n <= self.n_units and n > 1:
                small = small or self._thin(POWER_FEATURES)
                found = small._power_at(n, np.random.default_rng([POWER_SEED, n]))
            self._power[n] = np.array([math.nan if p is None else p for p in found.values()])
        return [
            {"n": int(n), "change": change, "power": None if math.isnan(p) else float(p)}
            for n in sizes
            for change, p in zip(CHANGES, self._power[int(n)], strict=True)
        ]

    def _power_at(self, n: int, rng: np.random.Generator) -> dict[str, float | None]:
        def means(rows: NDArray[np.int32]) -> NDArray[Any]:
            return inference.weighted_means(rows, self.held_table)

        def null() -> Floats:
            return self.statistics(means(self.draw_held(n, POWER_DRAWS, rng)[0]), 1.0 / n)

        ranking = inference.Ranking([null() for _ in range(3)], STATISTICS, FAMILIES)

        def found(statistics: Floats) -> float:
            return inference.power_of(ranking(statistics)[2], alpha=ALPHA)

        rows = self.draw_held(n, POWER_SETS, rng)[0]
        plain = self.statistics(means(rows), 1.0 / n)
        own = rng.permuted(self.held_table[:, -2].astype(np.float64)[rows], axis=1)
        out: dict[str, float | None] = {}
        for change, share in zip(CHANGES, FOREIGN, strict=False):
            k = max(1, round(share * n))
            foreign = -np.log(rng.uniform(1e-3, ALPHA, size=(POWER_SETS, k)))
            changed = plain.copy()
            changed[:, 4] = (own[:, k:].sum(axis=1) + foreign.sum(axis=1)) / n
            out[change] = found(changed)
        halves = self.draw_held((n + 1) // 2, POWER_SETS, rng)[0]
        twice = np.sort(np.concatenate([halves, halves[:, : n // 2]], axis=1), axis=1)
        out[CHANGES[2]] = found(self.statistics(means(twice), 1.0 / n))
        kept = np.flatnonzero(self.held.clusters != int(np.argmax(self.cluster_shares)))
        out[CHANGES[3]] = None
        if len(kept) >= n:
            rows = kept[inference.draw_subsets(n, len(kept), POWER_SETS, rng=rng)].astype(np.int32)
            out[CHANGES[3]] = found(self.statistics(means(rows), 1.0 / n))
        return out

    def _thin(self, n_features: int) -> Mix:
        """Return the same mix seen through the first of its random features: coarser and cheaper."""
        half, few = self.width // 2, min(n_features, self.width) // 2
        scale = np.float32(math.sqrt(half / few))
        at = np.concatenate([i * half + np.arange(few) for i in range(2 * len(self.bandwidths2))])
        other = copy.copy(self)
        other.features = distances.FourierFeatures(self.features.frequencies[:few], self.bandwidths2)
        other.width = 2 * few
        other.mean = self.mean[at] * float(scale)
        other._summarise()
        rest = self.held_table[:, len(self.bandwidths2) * self.width :]
        rest = np.delete(rest, np.s_[self.k : self.k + self.n_domains], axis=1)  # no test looks at domains
        other.n_domains = 0
        other.held_table = np.concatenate([self.held_table[:, at] * scale, rest], axis=1)
        return other


def _product(matrix: Any, table: NDArray[np.float32], device: str = "cpu") -> NDArray[np.float32]:
    """Return the product of a sparse matrix and a table; its bits do not depend on the number of threads.

    Sparse, 128 columns at a time, so that the table's block stays in the cache (2.5 times as fast as whole rows);
    dense, 512 lines at a time, where a line holds more than an eighth of the rows.
    """
    if device != "cpu":
        return gpu.sums(matrix.indices, matrix.indptr[:-1], matrix.data, table, device=gpu.resolve(device))
    if 8 * matrix.nnz > matrix.shape[0] * matrix.shape[1]:
        blocks = [matrix[at : at + 512].toarray() @ table for at in range(0, matrix.shape[0], 512)]
        return np.concatenate(blocks) if blocks else np.zeros((0, table.shape[1]), np.float32)
    out = np.empty((matrix.shape[0], table.shape[1]), dtype=np.float32)

    def one_block(at: int) -> None:
        out[:, at : at + 128] = matrix @ np.ascontiguousarray(table[:, at : at + 128])

    with _threads() as pool:
        list(pool.map(one_block, range(0, table.shape[1], 128)))
    return out


def _threads() -> ThreadPoolExecutor:
    """Return threads for products, which release the interpreter lock. BLAS itself keeps to one (`scoring`)."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Chance:
    """What draws of the mix of the same size get: one entry per draw, `excess2` their mean unbiased MMD^2.

    `excess2` is not quite zero: fitted rows lie a little closer to each other than new rows do to them.
    """

    distance: Floats
    excess2: float
    mix_overlap: Floats
    domain_overlap: Floats
    belong: Floats

    def to_array(self) -> Floats:
        """Return all of it as one array, from which `from_array` makes the same."""
        return np.concatenate(
            [self.distance, self.mix_overlap, self.domain_overlap, self.belong, np.array([self.excess2])]
        )

    @classmethod
    def from_array(cls, values: Floats) -> Chance:
        distance, mix_overlap, domain_overlap, belong = np.split(values[:-1], 4)
        return cls(distance, float(values[-1]), mix_overlap, domain_overlap, belong)


@dataclass(frozen=True)
class Drawn:
    """Null draws of n rows, and what their held-out rows add.

    rows : int32 (draws, n), candidates from len(held) on;  draw, who : which draws hold which candidates;  lines :
    float32 (draws, features) what held-out rows add to the mean, or None where own, (draws, bandwidths), its squared
    length, is known instead;  sums : (draws, bandwidths + 1) its product with the mean of the mix, and -log typicality;
    shares : (draws, k) of clusters.
    """

    rows: NDArray[np.int32]
    draw: NDArray[np.int64]
    who: NDArray[np.int32]
    own: Floats | None
    lines: NDArray[np.float32] | None
    sums: Floats
    shares: Floats


def _squares(means: NDArray[Any], starts: range) -> Floats:
    """Return (draws, bandwidths): the squared lengths of the parts of means that are of one bandwidth."""
    parts = [means[:, at : at + starts.step] for at in starts]
    return np.stack([np.einsum("ij,ij->i", m, m) for m in parts], axis=1).astype(np.float64)


def _stack(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return `np.stack` of arrays, without a copy of a single one."""
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def _hash_of(*arrays: NDArray[Any]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "little")
