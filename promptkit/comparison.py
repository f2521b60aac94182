"""A set of candidates against a fitted mix: the set statistics, their null, their p-values, their power.

    rows of the mix, fitted | held out  ->  Mix  ->  draws of n held-out rows  ->  floor, p-values, what n can see

Every row becomes one line of a table (random features of its vector, cluster, domain, -log typicality), and a set is
the mean of its lines. A null draw is a mean of n lines too, so thousands of draws are one sparse product and no set
is ever compared with another pair by pair.

What is drawn from what: the *floor* (distance that chance alone makes) draws from held-out rows; the *test* draws from
held-out rows and candidates together. That is a permutation test, exact for any statistic and any n. Drawing from the
held-out rows alone is not: its draws scatter less about the mix than new rows do, by the factor 1 - n / held-out, and
gave 8 % false alarms instead of 5 at n = 200 from 1,742 held-out rows (measured, 800 sets of 20 fits).
Both draw units, not rows: see `inference.draw_units`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptkit import distances, inference

if TYPE_CHECKING:
    from promptkit.inference import Floats, Joint

STATISTICS = ("mmd_1", "mmd_1/2", "mmd_1/4", "jensen_shannon", "fisher")
FAMILIES = {"mix": STATISTICS[:4], "fidelity": STATISTICS[4:]}
ALPHA = 0.05  # below this typicality a prompt does not belong; below this p-value a set is no draw of the mix
N_FEATURES = 512  # columns per bandwidth: a whole orthogonal block for 256 dimensions, within 1-2 % of the exact MMD
FLOOR_DRAWS = 499
MAX_COVERED = 2000  # held-out rows that coverage looks at
POWER_SIZES = (10, 20, 50, 100, 200, 500)
POWER_FEATURES, POWER_DRAWS, POWER_SETS = 128, 199, 100
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
    ) -> None:
        self.fitted, self.held, self.weighted, self.seed = fitted, held, weighted, seed
        self.cluster_shares, self.domain_shares = cluster_shares, domain_shares
        self.k, self.n_domains = len(cluster_shares), len(domain_shares)
        base = distances.median_squared_distance(fitted.X)
        self.bandwidths2 = tuple(base * scale for scale in distances.BANDWIDTHS)
        self.features = distances.fourier(fitted.X.shape[1], self.bandwidths2, n_features=n_features, seed=0)
        self.width = self.features.width
        self.mean = np.zeros(len(self.bandwidths2) * self.width)
        for start in range(0, len(fitted), 4096):  # blocks: the features of 100,000 rows would be 600 MB
            block = slice(start, start + 4096)
            self.mean += fitted.weights[block] @ self.features(fitted.X[block]).astype(np.float64)
        self._summarise()
        self.fitted_shares = np.bincount(fitted.clusters, fitted.weights, minlength=self.k)
        self.held_table = self.table(held)
        self.n_units = len(np.unique(held.units))

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
        out = np.empty((len(means), len(STATISTICS)))
        for i, m in enumerate(self._blocks(means)):
            mu = self.mean[i * self.width : (i + 1) * self.width]
            out[:, i] = ((m * m).sum(axis=1) - squares) / (1.0 - squares) + self.within[i] - 2.0 * (m @ mu)
        P, q = self.shares_of(means)[0], self.fitted_shares
        half = 0.5 * (P + q)
        safe = np.where(half > 0, half, 1.0)
        bits = P * np.log2(np.where(P > 0, P, safe) / safe) + q * np.log2(np.where(q > 0, q, safe) / safe)
        out[:, 3] = 0.5 * bits.sum(axis=1)
        out[:, 4] = means[:, -2]
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
        rows, repeats = self.draw_held(len(weights), FLOOR_DRAWS, rng)
        means = inference.weighted_means(rows, self.held_table, weights, rng=rng)
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

    def test(self, table: NDArray[np.float32], weights: Floats, *, draws: int, rng: np.random.Generator) -> Joint:
        """Return the calibrated p-values of the candidates, given as their table; three batches of `draws`."""
        n, squares = len(table), float(weights @ weights)
        observed = self.statistics((weights.astype(np.float32) @ table)[None], squares)[0]
        if self.weighted:
            pool = self.held_table
        else:
            pool = np.concatenate([self.held_table, table])
            units = np.concatenate([self.held.units, self.held.units.max(initial=0) + 1 + np.arange(n)])
        batches = []
        step = max(1, 2_000_000 // n)
        for _ in range(3):
            parts = []
            for start in range(0, draws, step):
                size = min(step, draws - start)
                if self.weighted:
                    rows, _ = self.draw_held(n, size, rng)
                else:
                    rows = inference.draw_units(n, units, size, rng=rng)
                parts.append(self.statistics(inference.weighted_means(rows, pool, weights, rng=rng), squares))
            batches.append(np.concatenate(parts))
        return inference.Ranking(batches, STATISTICS, FAMILIES).joint(observed)

    # ---------------------------------------------------------------------------------------------- coverage

    def coverage(
        self, X: NDArray[np.float32], rng: np.random.Generator, *, in_fit: NDArray[np.bool_] | None = None
    ) -> tuple[float, tuple[float, float]]:
        """Return the share of held-out rows within reach of a candidate over what chance reaches, with its interval.

        `in_fit` (n,) marks candidates that the vector space was fitted on, such as those of a pack drawn from the mix.
        Such rows lie apart from all others (they own a part of the space), so chance is what fitted rows reach: else
        a perfect pack covers 0.73.
        """
        # One row per unit: a row's own near-duplicates would shrink its reach to what no other prompt can touch.
        _, rows, unit = np.unique(self.held.units, return_index=True, return_inverse=True)
        w = np.bincount(unit, self.held.weights)
        if len(rows) > MAX_COVERED:
            kept = np.sort(np.random.default_rng(self.seed).permutation(len(rows))[:MAX_COVERED])
            rows, w = rows[kept], w[kept]
        w = w / w.sum() if w.sum() > 0 else np.full(len(w), 1.0 / len(w))
        H = self.held.X[rows]
        m, n = len(H), len(X)
        n_fit = 0 if in_fit is None else int(in_fit.sum())
        own, to_set = np.round(H @ H.T, 5), np.round(H @ X.T, 5)
        to_fit = np.zeros((m, 0), dtype=np.float32)
        if n_fit:
            some = np.random.default_rng(self.seed).permutation(len(self.fitted))[:MAX_COVERED]
            to_fit = np.round(H @ self.fitted.X[np.sort(some)].T, 5)

        def by_chance(size: int, reach: NDArray[Any]) -> float:
            old = round(size * n_fit / n)
            miss = 1.0 - distances.chance_coverage(m, size - old, distances.reach_size(m, size))
            if old:
                # Of K fitted rows c are in reach: `old` of them, drawn without replacement, all miss. Unbiased in c.
                K, j = to_fit.shape[1], np.arange(to_fit.shape[1])
                all_miss = np.concatenate([[1.0], np.cumprod(np.maximum(K - min(old, K) - j, 0) / (K - j))])
                miss = miss * all_miss[(to_fit >= reach[:, None]).sum(axis=1)]
            return float(1.0 - (w @ miss if old else miss))

        def of(columns: NDArray[np.int64] | slice, reach: NDArray[Any], chance: float) -> float:
            return float(w @ (to_set[:, columns].max(axis=1) >= reach)) / chance

        reach = distances.reaches(own, n)
        value = of(slice(None), reach, by_chance(n, reach))
        if n < 4:
            return value, (math.nan, math.nan)
        shorter = distances.reaches(own, n // 2)
        chance = by_chance(n // 2, shorter)
        # The held-out rows are a sample of the mix too: which of them are in reach is as good as their number.
        hit = to_set.max(axis=1) >= reach
        of_rows = float((w**2 * (hit - w @ hit) ** 2).sum()) / by_chance(n, reach) ** 2
        low, high = inference.half_sample(
            n, lambda part: of(part, shorter, chance), centre=value, extra=of_rows, rng=rng
        )
        return value, (max(0.0, low), high)

    # ------------------------------------------------------------------------------------------------- power

    def power(self, sizes: Sequence[int], rng: np.random.Generator) -> list[dict[str, Any]]:
        """Return `n, change, power` for sets of each size: how often a change of the mix would be found at 5 %.

        Simulated on held-out rows, with fewer features and draws than the test itself takes: good to 5-10 points.
        Foreign prompts are rows whose typicality is replaced by one below 0.05, the mildest there are. None where the
        held-out part has fewer than 2 n units to draw from.
        """
        small, out = self._thin(POWER_FEATURES), []
        for n in sizes:
            found = small._power_at(n, rng) if 2 * n <= self.n_units and n > 1 else dict.fromkeys(CHANGES)
            out += [{"n": int(n), "change": change, "power": found[change]} for change in CHANGES]
        return out

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
        other.held_table = np.concatenate([self.held_table[:, at] * scale, rest], axis=1)
        return other


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
