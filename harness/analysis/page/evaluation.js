// Draws one evaluation, or two side by side, from the JSON in the page.

const PIECE = 200, BINS = 20;
const {sides} = JSON.parse($("data").textContent);
const isTwo = sides.length > 1;
const hasEpochs = sides.some((side) => side.rows.some((row) => row.epochs.length > 1));
document.body.classList.toggle("two", isTwo);

const digits = (value, most = 3) => value === null || Number.isNaN(value) ? "–"
  : String(+value.toFixed(most));
const took = (seconds) => time(seconds === undefined ? null : seconds * 1e9);
const textOf = (value) => value === null || value === undefined ? ""
  : typeof value === "string" ? value : JSON.stringify(value);
const excerpt = (value) => textOf(value).slice(0, 300).replace(/\s+/g, " ");

// --- the rows, paired by id or inputs --------------------------------------------------------------

const names = [...new Set(sides.flatMap((side) => side.figures.map((of) => of.name)))];
let score = names[0];
const byId = new Map();
sides.forEach((side, number) => {
  for (const row of side.rows) {
    const name = row.name ?? row.id;
    if (!byId.has(name)) byId.set(name, {id: row.id, sides: [], place: byId.size});
    byId.get(name).sides[number] = row;
  }
});
const rows = [...byId.values()];
const first = (row) => row.sides.find((side) => side);
const current = (side) => side ? side.epochs.filter((epoch) => !epoch.outdated) : [];
const valuesOf = (side) => current(side).map((epoch) => epoch.scores[score])
  .filter((value) => value !== undefined);
const mean = (values) => values.length ? values.reduce((a, b) => a + b) / values.length : NaN;
const sum = (side, name) => {
  const known = current(side).map((epoch) => epoch[name]).filter((value) => value !== undefined);
  return known.length ? known.reduce((a, b) => a + b) : undefined;
};
function measure() {
  for (const row of rows) {
    const values = sides.map((_, number) => valuesOf(row.sides[number]));
    row.means = values.map(mean);
    row.spread = Math.max(...values.map((of) => Math.max(...of) - Math.min(...of)), 0);
    row.apart = isTwo ? row.means[1] - row.means[0] : NaN;
  }
}
const haystack = (row) => row.words ??= row.sides.filter((side) => side).flatMap((side) => [
  side.id, textOf(side.inputs), textOf(side.target),
  ...side.epochs.flatMap((epoch) => [textOf(epoch.output), textOf(epoch.reasons),
    textOf(epoch.findings)])]).join("\n").toLowerCase();

// --- sort, filter, search -------------------------------------------------------------------------

const FILTERS = {
  "all": () => true,
  "below the best score": (row) => row.means.some((value) => value < best),
  "epochs differ": (row) => row.spread > 0,
  "without a score": (row) => row.means.some(Number.isNaN),
  ...(isTwo ? {"second is higher": (row) => row.apart > 0,
    "second is lower": (row) => row.apart < 0} : {}),
};
const SORTS = {
  row: (row) => row.place, output: (row) => excerpt(first(row).epochs[0].output),
  target: (row) => textOf(first(row).target), score: (row) => row.means[0],
  apart: (row) => row.apart, cost: (row) => sum(first(row), "cost_usd") ?? 0,
  time: (row) => sum(first(row), "seconds") ?? 0,
};
let best = 1, sort = "row", isDown = false, shown = [], drawn = 0;

function choose() {
  const wanted = $("search").value.trim().toLowerCase(), keep = FILTERS[$("filter").value];
  shown = rows.filter((row) => keep(row) && (!wanted || haystack(row).includes(wanted)));
  const key = SORTS[sort];
  const keyed = shown.map((row) => [key(row), row]);
  keyed.sort(([a, x], [b, y]) => {
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return ((a > b) - (a < b)) * (isDown ? -1 : 1) || x.place - y.place;
  });
  shown = keyed.map(([, row]) => row);
  $("found").textContent = shown.length === rows.length ? ""
    : `${many(shown.length)} of ${many(rows.length)} rows`;
  $("rows-body").replaceChildren();
  drawn = 0;
  drawMore();
}
function drawMore() {
  const next = shown.slice(drawn, drawn + PIECE);
  $("rows-body").append(...next.map(rowOf));
  drawn += next.length;
  $("more").hidden = drawn >= shown.length;
  $("more").textContent = `${many(shown.length - drawn)} more`;
}

// --- drawing --------------------------------------------------------------------------------------

function rowOf(row) {
  const side = first(row);
  const shownScores = isTwo ? row.means.map((value) => digits(value)).join("  ")
    : valuesOf(side).map((value) => digits(value, 2)).join("  ") || "–";
  const last = isTwo
    ? [h("span", {class: `end ${row.apart > 0 ? "good" : row.apart < 0 ? "bad" : ""}`},
      row.apart > 0 ? "+" : "", digits(row.apart))]
    : [h("span", {class: "end cost"}, usd(sum(side, "cost_usd"))),
      h("span", {class: "end time"}, took(sum(side, "seconds")))];
  const details = h("details", {class: "row"}, h("summary", null,
    h("span", {class: "quiet"}, row.id),
    h("span", {class: "text-line"}, excerpt(side.epochs[0].output)),
    h("span", {class: "quiet target"}, excerpt(side.target)),
    h("span", {class: "end"}, shownScores), last));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(inside(row));
  });
  return details;
}
function inside(row) {
  const side = first(row);
  const inputs = Object.entries(side.inputs ?? {}).filter(([name]) => name !== "target");
  return h("div", null,
    h("div", {class: "scroll"}, h("table", null, inputs.map(([name, value]) => h("tr", null,
      h("td", {class: "name quiet"}, name), h("td", null, textOf(value).slice(0, 5000)))),
    side.target !== null && side.target !== undefined && h("tr", null,
      h("td", {class: "name quiet"}, "target"), h("td", null, textOf(side.target))))),
    h("div", {class: "sides"}, row.sides.map((of, number) => of && h("div", null,
      isTwo && h("h3", null, sides[number].name), of.epochs.map(epochOf)))));
}
function epochOf(epoch) {
  const of = (epoch.findings || []).filter((finding) => finding);
  const models = (epoch.models || []).map((model) => model.model).filter((name) => name);
  const about = [`epoch ${epoch.epoch}`, ...new Set(models), epoch.seconds && took(epoch.seconds),
    epoch.cost_usd !== undefined && usd(epoch.cost_usd)].filter((part) => part).join(" · ");
  return h("div", {class: "epoch"}, note(about),
    epoch.outdated && h("p", {class: "wait"}, `outdated: ${epoch.outdated}`),
    epoch.no_score && h("p", {class: "wait"}, `no score from ${[epoch.no_score].flat().join(", ")}`),
    h("div", {class: "text"}, textOf(epoch.output)),
    h("table", null, Object.entries(epoch.scores).map(([name, value]) => h("tr", null,
      h("td", {class: "name quiet"}, name), h("td", {class: "number"}, digits(value)),
      h("td", null, textOf(epoch.reasons?.[name]),
        of.filter((finding) => finding.score === name).map((finding) => note(
          finding.section ? `${finding.section}: ` : "", finding.message)))))));
}
function drawFigures() {
  const reducers = [...new Set(sides.map((side) => side.reduce))].join(", ");
  const head = ["score", ...(isTwo ? ["file"] : []), "rows", hasEpochs ? `${reducers} over epochs` : "mean",
    "stderr", "95 % confidence", "accuracy"];
  const lines = names.flatMap((name) => sides.map((side, number) => {
    const of = side.figures.find((figure) => figure.name === name);
    return of && h("tr", {class: `pick ${name === score ? "chosen" : ""}`, onclick: () => {
      $("score").value = name; redraw(); }},
      h("td", {class: "name"}, name), isTwo && h("td", null, side.name),
      h("td", null, many(of.rows), of.missing > 0 && ` (${many(of.missing)} missing)`),
      h("td", null, digits(of.mean, 4)),
      h("td", null, of.stderr === null ? "–" : digits(of.stderr, 4),
        of.groups ? ` (${of.groups} groups)` : ""),
      h("td", null, of.low === null ? "–" : `${digits(of.low)} to ${digits(of.high)}`),
      h("td", null, of.accuracy === null ? "–" : digits(of.accuracy, 4)));
  }));
  $("figures").replaceChildren(h("table", null,
    h("thead", null, h("tr", null, head.map((name) => h("th", {scope: "col"}, name)))),
    h("tbody", null, lines)));
}
function drawPlot() {
  const values = sides.map((side) => side.rows.flatMap(valuesOf));
  const every = values.flat();
  let low = Infinity, high = -Infinity;
  for (const value of every) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!every.length) { $("plot").replaceChildren("No row has this score."); return; }
  if (low >= 0 && high <= 1) { low = 0; high = 1; }
  best = high;
  const width = (high - low || 1) / BINS;
  const counts = values.map((of) => {
    const bins = new Array(BINS).fill(0);
    for (const value of of) bins[Math.min(BINS - 1, Math.floor((value - low) / width))] += 1;
    return bins;
  });
  const most = Math.max(...counts.flat());
  const bars = counts[0].map((_, bin) => h("div", {title: `${digits(low + bin * width)} to ${
    digits(low + (bin + 1) * width)}: ${counts.map((of) => many(of[bin])).join(" and ")
  }`}, counts.map((of) => { const bar = h("i"); bar.style.height = `${100 * of[bin] / most}%`;
    return bar; })));
  $("plot-title").textContent = `${score}, by output`;
  $("plot").replaceChildren(
    isTwo && h("p", {class: "key"}, sides.map((side, number) => h("span", {class: `m${number}`},
      h("i"), side.name))) || "",
    h("div", {class: "bars", role: "img", "aria-label":
      `How many outputs have which ${score}: from ${digits(low)} to ${digits(high)}`}, bars),
    h("div", {class: "axis"}, h("span", null, digits(low)),
      h("span", null, `at most ${many(most)}`), h("span", null, digits(high))));
}
function drawTitles() {
  const titles = [["row", "row"], ["output", "output"], ["target", "target"],
    ["score", isTwo ? "both" : hasEpochs ? "epochs" : score],
    ...(isTwo ? [["apart", "difference"]] : [["cost", "cost"], ["time", "time"]])];
  $("titles").replaceChildren(...titles.map(([key, title], at) => h("span", {class: at > 2 && "end"},
    h("button", {type: "button", "aria-label": `Sort by ${title}`, onclick: () => {
      isDown = sort === key && !isDown; sort = key; drawTitles(); choose(); }},
    title, sort === key && (isDown ? " ↓" : " ↑")))));
}
function redraw() {
  score = $("score").value;
  measure(); drawFigures(); drawPlot(); drawTitles(); choose();
}

document.title = sides.map((side) => side.name).join(" and ");
$("name").textContent = document.title;
const samples = sides[0].rows.reduce((count, row) => count + row.epochs.length, 0);
$("about").textContent = `${many(rows.length)} rows, ${
  many(samples)} outputs${isTwo ? " in the first" : ""}`;
$("failures").append(...sides.flatMap((side) => side.failures.length ? [h("details", null,
  h("summary", {class: "bad"}, `${many(side.failures.length)} failed in ${side.name}`),
  side.failures.slice(0, PIECE).map((row) => note(`${row.id}: ${row.reason}`)))]
  : []));
$("score").append(...names.map((name) => h("option", {value: name}, name)));
$("filter").append(...Object.keys(FILTERS).map((name) => h("option", {value: name}, name)));
$("score").addEventListener("change", redraw);
$("filter").addEventListener("change", choose);
searchable(choose);
$("more").addEventListener("click", drawMore);
new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) drawMore(); },
  {rootMargin: "600px"}).observe($("more"));
redraw();
