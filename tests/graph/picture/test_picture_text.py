# ruff: noqa: RUF001 - the sign of multiplication is meant

from graphs_to_draw import UGLY, brief, brief_in_its_run, fan, random_graph, with_names
from rich.cells import cell_len

from harness.graph import Graph
from harness.graph.picture import as_text, drawing_of


def test_every_node_is_a_line_that_names_what_it_takes():
    assert (
        as_text(drawing_of(brief()))
        == """\
brief: 5 nodes in 5 layers; inputs: task, document

1  parts       ← task, document
2  topics      ← parts, task (planner)
3  sources ×   ← each topics
4  sections ×  ← each topics, each sources (producer)
5  text        ← sections[], sources[], task

× is called once per item; [] takes the list of all items
"""
    )


def test_a_run_is_shown_in_columns_with_its_critical_path_marked():
    assert (
        as_text(brief_in_its_run(), width=120)
        == """\
brief: 5 nodes in 5 layers; inputs: task, document
run 20261120T094006Z-370323a26851: 10.4 s, ended well

1  ●  parts        0.16 s                             ← task, document
2  ●  topics       1.49 s   1 call   119 → 59 tokens  ← parts, task (planner)
3  ●  sources ×3   3.3 ms                             ← each topics
4  ●  sections ×3  4.91 s  3 calls  751 → 177 tokens  ← each topics, each sources (producer)
5  ●  text         3.68 s   1 call   599 → 80 tokens  ← sections[], sources[], task

× is called once per item; [] takes the list of all items; ● is on the critical path, which \
decided how long the run took
"""
    )


def test_sixty_nodes_are_sixty_lines_within_the_width():
    lines = as_text(drawing_of(random_graph(60, seed=1)), width=80).splitlines()
    assert len(lines) == 62
    assert max(map(cell_len, lines)) <= 80


def test_a_line_that_is_too_long_goes_on_under_itself():
    assert as_text(drawing_of(fan(9)), width=40).splitlines()[-5:] == [
        "3  join      ← worker_0, worker_1,",
        "               worker_2, worker_3,",
        "               worker_4, worker_5,",
        "               worker_6, worker_7,",
        "               worker_8",
    ]


def test_wide_letters_do_not_disturb_the_columns():
    lines = as_text(drawing_of(with_names("概要", "text"))).splitlines()
    assert lines[-2:] == ["1  概要", "2  text  ← 概要"]


def test_a_graph_without_nodes_says_so():
    assert as_text(drawing_of(Graph("empty"))) == "empty: 0 nodes in 0 layers; inputs: none\n"


def test_no_text_can_break_a_line():
    graph = Graph(UGLY)

    @graph.node(models=[UGLY])
    async def one(): ...

    assert len(as_text(drawing_of(graph)).splitlines()) == 3
