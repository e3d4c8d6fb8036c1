import random
from itertools import combinations, pairwise

import pytest
from graphs_to_draw import random_graph

from harness.graph.picture import drawing_of
from harness.graph.picture.layout import Size, lay_out
from harness.graph.picture.ordering import ordered_rows
from harness.graph.picture.positions import nearest_apart


def layers_and_edges(nodes: int, *, seed: int) -> tuple[list[list[str]], list[tuple[str, str]]]:
    drawing = drawing_of(random_graph(nodes, seed=seed))
    layers: list[list[str]] = [[] for _ in range(drawing.layers)]
    for box in drawing.boxes:
        layers[box.layer].append(box.name)
    return layers, [(arrow.source, box.name) for box in drawing.boxes for arrow in box.arrows]


def crossings_counted_one_by_one(rows) -> int:
    crossings = 0
    for row, below in pairwise(rows.rows):
        joints = [
            (number, below.index(other))
            for number, cell in enumerate(row)
            for other in rows.after[cell]
        ]
        crossings += sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in combinations(joints, 2))
    return crossings


@pytest.mark.parametrize("seed", range(20))
def test_crossings_are_those_that_one_would_count(seed):
    rows = ordered_rows(*layers_and_edges(30, seed=seed))
    assert rows.crossings() == crossings_counted_one_by_one(rows)


def test_sorting_the_layers_takes_most_crossings_away():
    before, after = 0, 0
    for seed in range(20):
        layers, edges = layers_and_edges(40, seed=seed)
        shuffled = [random.Random(seed).sample(names, len(names)) for names in layers]
        rows = ordered_rows(shuffled, edges)
        unsorted = ordered_rows(shuffled, [])
        joined = type(rows)(
            rows=tuple(
                (*first, *(cell for cell in row if cell not in first))
                for first, row in zip(unsorted.rows, rows.rows, strict=True)
            ),
            before=rows.before,
            after=rows.after,
        )
        before += joined.crossings()
        after += rows.crossings()
    assert after < before / 3


@pytest.mark.parametrize("seed", range(20))
def test_every_box_keeps_its_layer_and_every_arrow_passes_all_between(seed):
    layers, edges = layers_and_edges(30, seed=seed)
    rows = ordered_rows(layers, edges)
    for number, (names, row) in enumerate(zip(layers, rows.rows, strict=True)):
        assert len(set(row)) == len(row)
        assert {name for name, _ in row} >= set(names)
        assert all(layer == number for _, layer in row)
    layout = lay_out(
        layers, edges, {name: Size(across=50, along=20) for names in layers for name in names},
        gap=10, layer_gap=30,
    )  # fmt: skip
    layer_of = {name: number for number, names in enumerate(layers) for name in names}
    for (source, target), route in layout.routes.items():
        assert len(route) == 2 * (1 + layer_of[target] - layer_of[source])
        along = [point[1] for point in route]
        assert along == sorted(along)


def best_of_all_pools(wanted, packed, weights):
    """The same by trying every way to split the row into pools that move as one."""
    best, least = None, float("inf")
    count = len(wanted)
    for cuts in range(2 ** (count - 1)):
        ends = [n + 1 for n in range(count - 1) if cuts >> n & 1] + [count]
        found, start = [], 0
        for end in ends:
            shifts = [wanted[n] - packed[n] for n in range(start, end)]
            total = sum(weights[start:end])
            shift = sum(s * w for s, w in zip(shifts, weights[start:end], strict=True)) / total
            found += [shift + packed[n] for n in range(start, end)]
            start = end
        steps = [
            b - a - (q - p)
            for (a, b), (p, q) in zip(pairwise(found), pairwise(packed), strict=True)
        ]
        cost = sum(w * (f - x) ** 2 for f, x, w in zip(found, wanted, weights, strict=True))
        if all(step > -1e-9 for step in steps) and cost < least:
            best, least = found, cost
    return best


@pytest.mark.parametrize("seed", range(50))
def test_positions_are_the_nearest_that_are_apart(seed):
    randomness = random.Random(seed)
    count = randomness.randint(1, 7)
    wanted = [randomness.uniform(0, 100) for _ in range(count)]
    packed = [0.0]
    for _ in range(count - 1):
        packed.append(packed[-1] + randomness.uniform(5, 30))
    weights = [randomness.choice([1.0, 8.0]) for _ in range(count)]
    expected = best_of_all_pools(wanted, packed, weights)
    assert nearest_apart(wanted, packed, weights) == pytest.approx(expected)
