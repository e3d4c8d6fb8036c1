// Draws one run from the JSON in the page, and again when a server has news.

const CHUNK = 100, MOST_ITEMS = 200, PHASES = ["overhead", "queue", "load", "prefill", "decode"];
let page = JSON.parse($("data").textContent);
let shown = [];  // the calls in the list: all, or those that the search found
let shownRows = [];  // the same of a batch's rows
let query = null;  // a regular expression while there is a search
let hits = new Map();  // by index of a text: where the search found it first
const opened = new Set();  // ids of what the reader has opened; they outlive a redrawing
const drawn = new Map();  // by part of the page: what it was drawn from

// --- elements and words -----------------------------------------------------------------------

const wide = (element, share) => { element.style.width = `${100 * share}%`; return element; };

const when = (one) => `${time(one.duration_ns)} from ${time(one.start_ns)}`;
function state(said) {
  if (said === "unfinished" && page.status === "running") said = "running";
  const tones = {ok: "good", done: "good", passed: "good", failed: "bad", error: "bad"};
  return h("span", {class: `state ${tones[said] ?? "wait"}`}, said);
}
const gained = (gain) => Math.abs(gain) > 1e-9 && h("span", {class: gain > 0 ? "good" : "bad"},
  `${gain > 0 ? "+" : "−"}${+Math.abs(gain).toFixed(2)} `);
const textOf = (index) => index === null ? null : page.texts[index];

// A text with what the search found marked in it.
function marked(text) {
  if (!query) return text;
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(new RegExp(query.source, "gi"))) {
    parts.push(text.slice(from, found.index), h("mark", null, found[0]));
    from = found.index + found[0].length;
    if (parts.length > 400) break;
  }
  return [...parts, text.slice(from)];
}
const look = (text) => /^\s*[[{]/.test(text) ? "text code" : "text";
const prose = (text) => h("div", {class: look(text)}, marked(text));
// A draft's headings stand out.
const headed = (text) =>
  text.split(/^(#{1,6} .*)$/m).map((one, n) => n % 2 ? h("b", null, one) : one);

// Something to open, whose inside is drawn when it is opened first.
function openable(id, props, summary, inside) {
  const box = h("details", {id, ...props}, h("summary", null, summary));
  const fill = () => box.children.length > 1 || box.append(h("div", null, inside()));
  if (opened.has(id)) { box.open = true; fill(); }
  box.addEventListener("toggle", () => {
    if (!box.isConnected) return;
    if (box.open) { opened.add(id); fill(); } else opened.delete(id);
    if (box.open && /^(call|row)-/.test(id)) history.replaceState(null, "", `#${id}`);
  });
  return box;
}

// --- head -------------------------------------------------------------------------------------

function drawHead() {
  const {report} = page, began = new Date(page.wall_ns / 1e6);
  const sum = (of) => report.models.reduce((total, one) => total + one[of], 0);
  document.title = `${report.pipeline} · ${report.run_id}`;
  $("name").replaceChildren(report.pipeline, state(page.status));
  $("about").replaceChildren(`Run ${report.run_id}, ${began.toLocaleString()}`,
    report.parts > 1 ? `, in ${report.parts} parts` : "", h("span", {id: "live"}));
  const sums = [["Time", time(report.duration_ns)], ["Calls", many(page.calls.length)],
    ["Tokens in", many(sum("input_tokens"))], ["Tokens out", many(sum("output_tokens"))],
    report.cost.usd !== null && ["Cost", usd(report.cost.usd)]];
  $("sums").replaceChildren(...sums.filter(Boolean).map(([what, said]) =>
    h("div", null, h("dt", null, what), h("dd", null, said))));
  const items = page.columns.flat().flatMap((node) => node.items);
  const lost = page.calls.filter((call) => call.status === "error");
  const failed = items.filter((item) => item.status === "failed");
  const around = new Set(failed.flatMap(({label}) =>  // a call fails with a node in it
    [...label.matchAll(/\//g)].map((slash) => label.slice(0, slash.index))));
  const bad = (...said) => h("p", {class: "bad"}, said);
  $("failures").replaceChildren(...[report.error && bad("The run failed: ", report.error),
    ...failed.filter((item) => !around.has(item.label)).slice(0, 20)
      .map((item) => bad(`${item.label} failed: `, item.error)),
    lost.length && bad(`${counted(lost.length, "call")} failed: `, lost.slice(0, 20).map((call) =>
      [h("a", {href: `#call-${call.id}`}, `call ${call.id}`), " "]))].filter(Boolean));
}

// The verdict on the last text, who answered, and the text itself.
function drawResult() {
  const {report, events} = page, loop = report.loops.at(-1);
  const answers = (one) => one.calls - one.failed - one.cancelled - one.unfinished - one.from_cache;
  const answered = report.models.filter((one) => answers(one) > 0)
    .map((one) => `${one.name} (${many(answers(one))})`).join(", ");
  const fallbacks = events.filter((one) => one.kind === "fallback").length;
  const scores = rows().map((row) => row.score).filter((score) => score !== null);
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  $("verdict").replaceChildren(...[
    page.rows && counted(rows().length, "row"),
    scores.length > 0 && `, ${mean.toFixed(2)} on average`, page.rows && ". ",
    loop?.composites.length && [h("b", null, loop.composites.join(" → ")),
      ` by rubric ${loop.rubric}`,
      state(loop.passed ? "passed" : loop.passed === null ? "unfinished" : "not passed"), " "],
    answered && quiet(`Answered by ${answered}.`),
    fallbacks > 0 && h("a", {href: "#events"}, ` ${counted(fallbacks, "fallback")}`)]
    .flat().filter(Boolean));
  const text = textOf(page.result);
  $("result").replaceChildren(...text?.trim() ? [h("div", {class: look(text)}, headed(text))] : []);
}

// --- graph ------------------------------------------------------------------------------------

function drawGraph() {
  const nodes = page.columns.flat(), panel = h("div", {class: "panel", hidden: true});
  const boxes = new Map(nodes.map((node, at) => [node.name, box(node, at)]));
  function show(node, isOpen) {
    for (const {name} of nodes) {
      boxes.get(name).setAttribute("aria-expanded", isOpen && name === node.name);
      opened.delete(`node-${name}`);
    }
    if (isOpen) opened.add(`node-${node.name}`);
    panel.hidden = !isOpen;
    if (node.items.length === 1) opened.add(`item-${node.name}-0`);
    const some = node.items.slice(0, MOST_ITEMS);
    panel.replaceChildren(h("h3", null, node.name), ...some.map((item, index) => openable(
      `item-${node.name}-${index}`, {class: "item"}, [item.label, state(item.status), " ",
        item.start_ns !== null && quiet(when(item))],
      () => [item.error && h("p", {class: "bad"}, item.error),
        item.gave === null ? note("No output is recorded.") : prose(textOf(item.gave))])),
    node.items.length > MOST_ITEMS && note(`and ${many(node.items.length - MOST_ITEMS)} more`));
  }
  function box({name, seen, items, needs}, at) {
    const own = items.filter((item) => !item.label.includes("/"));
    const first = own.map((item) => textOf(item.gave)).find(Boolean);
    return h("button", {class: `node ${seen.status}`, id: `node-${name}`, "aria-expanded": "false",
      onclick: (event) => show(nodes[at], event.currentTarget.ariaExpanded !== "true")},
      h("b", null, name), own.length > 1 && ` × ${many(own.length)}`,
      seen.is_critical && h("span", {class: "quiet", title: "on the critical path"}, " ●"),
      seen.status !== "done" && state(seen.status),
      note([time(seen.busy_ns), ...(seen.calls ? [counted(seen.calls, "call"),
        `${many(seen.input_tokens)} → ${many(seen.output_tokens)} tokens`] : [])].join(" · ")),
      needs.length > 0 && note(`← ${needs.join(", ")}`),
      own.length > 1 && h("div", {class: "squares"}, own.slice(0, 60).map((item) =>
        h("i", {class: item.status, title: `${item.label}: ${item.status}`}))),
      first && h("p", {class: "gave"}, first.slice(0, 200)));
  }
  const chosen = nodes.find((node) => opened.has(`node-${node.name}`));
  if (chosen) show(chosen, true);
  return [h("div", {class: "columns"}, page.columns.map((column) =>
    h("div", {class: "column"}, column.map((node) => boxes.get(node.name))))), panel,
    note("● is on the critical path, which decided how long the run took.")];
}

// --- loops ------------------------------------------------------------------------------------

function drawLoops() {
  return page.loops.map((loop, number) => {
    const {node, rubric, composites, passed, best_round: best} = page.report.loops[number];
    return h("div", {class: "loop"}, h("h3", null, node ?? `Loop ${number + 1}`,
      passed !== null && state(passed ? "passed" : "not passed")),
      h("p", null, `By rubric ${rubric}: `, composites.join(" → ")),
      note(`Stopped: ${loop.stop}. `, best !== null && `Round ${best} is returned.`),
      loop.unreadable && h("p", {class: "wait"}, loop.unreadable),
      loop.rounds.map((one) => drawRound(one, number + 1, loop.rounds, best)));
  });
}

function drawRound({round, why, remarks, sections}, loop, rounds, best) {
  const {verdict, drafting, judging} = round, id = `round-${loop}-${round.number}`;
  const base = rounds.find((one) => one.round.number === round.base_round)?.round.verdict;
  const calls = drafting.calls + judging.calls;
  const was = Object.fromEntries((base?.scores ?? []).map((score) => [score.name, score.score]));
  const said = [base ? `from round ${round.base_round}` : "the first draft",
    round.changed_chars && `${many(round.changed_chars)} characters changed`,
    calls && counted(calls, "call"), time(drafting.time_ns + judging.time_ns)];
  const top = scaleTop(scoresOf(rounds).flat().map((score) => score.score));
  return openable(id, {class: `round stop${round.number === best ? " best" : ""}`},
    [h("b", null, `Round ${round.number}: ${verdict.composite}`),
      base && gained(verdict.composite - base.composite), verdict.passed && state("passed"), " ",
      quiet(said.filter(Boolean).join(" · "))],
    () => [h("table", null, verdict.scores.map(({name, score, spread}) => h("tr", null,
      h("td", {class: "name"}, name),
      h("td", {class: "number"}, score, spread !== null && ` ±${spread.toPrecision(2)}`),
      h("td", {class: "number"}, gained(score - (was[name] ?? score))),
      h("td", {class: "number"}, h("div", {class: "meter"}, wide(h("i"), score / top))),
      h("td", null, why[name].map((line) => note(line)))))),
    remarks.length > 0 && note(`Remarks: ${remarks.join("; ")}.`),
    sections.map((section) => h("div", {class: "section"},
      h("div", {class: "text"}, section.parts.map(([op, text]) =>
        op === "=" ? headed(text) : h(op === "+" ? "ins" : "del", null, headed(text)))),
      h("ul", {class: "notes"}, section.notes.map(([name, message]) =>
        h("li", null, h("b", null, name), ": ", message))))),
    round.tried.length > 0 && h("h3", null, "Candidates"),
    round.tried.map((one, index) => openable(`${id}-candidate-${index}`, {class: "item"},
      [h("span", {class: `outcome ${one.outcome}`}, one.outcome.replace("_", " ")),
        ` · ${one.section ?? "the draft"}, number ${one.number}`,
        one.checked !== null && ` · by the checks ${one.checked.toFixed(2)}`],
      () => [one.error && h("p", {class: "bad"}, one.error), one.text && prose(one.text)]))]);
}

const scoresOf = (rounds) => rounds.map((one) => one.round.verdict.scores);

// --- plots ------------------------------------------------------------------------------------

function scaleTop(scores) {
  const most = Math.max(0, ...scores);
  return most <= 1 ? 1 : most <= 10 ? 10 : most;
}
const at = (number) => number.toFixed(1);
const rect = (x, y, width, height) =>
  `M${at(x)} ${at(y)}h${at(width)}v${at(height)}h${at(-width)}z`;
const word = (x, y, said, anchor = "start") => s("text", {x, y, "text-anchor": anchor}, said);
const key = (names, classOf) => h("div", {class: "key"}, names.map((name, index) =>
  h("span", null, h("i", {class: classOf(name, index)}), name)));
const modelClass = (name) => `m${page.report.models.findIndex((one) => one.name === name) % 6}`;
const canvas = (width, height, label, ...parts) =>
  s("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label}, parts);
const figure = (title, legend, drawing, caption, isWhole) => h("figure",
  {class: isWhole && "whole"}, h("figcaption", null, title), legend, drawing,
  caption && note(caption));
function ticks(most, count) {
  const power = 10 ** Math.floor(Math.log10(most / count));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= most / count);
  return Array.from({length: Math.floor(most / step + 1e-9) + 1}, (_, n) => +(n * step).toFixed(9));
}

// How many calls were in each phase, on average, in stretches of three pixels.
const DENSE = 120;
function densityPlot(calls, width, top, whole) {
  const bins = Math.ceil(width / 3), step = whole / bins, sums = {}, totals = Array(bins).fill(0);
  function add(name, start, duration) {
    const of = (sums[name] ??= Array(bins).fill(0)), end = start + duration;
    for (let bin = Math.floor(start / step); bin < bins && bin * step < end; bin += 1)
      of[bin] += (Math.min(end, (bin + 1) * step) - Math.max(start, bin * step)) / step;
  }
  for (const call of calls) {
    for (const one of call.phases) add(...one);
    const known = call.phases.reduce((sum, one) => sum + one[2], 0);
    add("other", call.start_ns, Math.max(0, call.duration_ns - known));
  }
  for (const of of Object.values(sums)) of.forEach((value, bin) => { totals[bin] += value; });
  const most = Math.max(...totals) || 1, base = Array(bins).fill(top + DENSE);
  const paths = [...PHASES, "other"].filter((name) => sums[name]).map((name) =>
    s("path", {class: name, d: sums[name].map((value, bin) => value > 0 ?
      rect(bin * 3, base[bin] -= value * DENSE / most, 3, value * DENSE / most) : "").join("")}));
  return [...paths, word(width, top - 3, `at most ${many(+most.toPrecision(3))} at once`, "end")];
}

function timelinePlot(width) {
  const whole = page.report.duration_ns || 1, x = (ns) => ns / whole * width;
  const parts = [], places = [];
  let top = 4;
  for (const model of page.report.models) {
    const calls = page.calls.filter((one) => one.model === model.name), free = [], lanes = [];
    for (const call of calls) {
      let lane = free.findIndex((ns) => ns <= call.start_ns);
      if (lane < 0) lane = free.push(0) - 1;
      free[lane] = call.start_ns + call.duration_ns;
      lanes.push(lane);
    }
    parts.push(word(0, top + 9, model.name));
    top += 15;
    if (calls.length > width || free.length > DENSE / 2) {  // no call could be seen
      parts.push(densityPlot(calls, width, top, whole));
      top += DENSE + 8;
      continue;
    }
    const tall = Math.max(2, Math.min(18, 150 / free.length)), paths = {};
    calls.forEach((call, index) => {
      const y = top + lanes[index] * tall;
      const whole = ["other", call.start_ns, call.duration_ns];
      for (const [name, start, duration] of [whole, ...call.phases])
        (paths[name] ??= []).push(rect(x(start), y, Math.max(0.7, x(duration)), tall * 0.86));
      places.push([call, y, y + tall]);
    });
    for (const name of ["other", ...PHASES])
      if (paths[name]) parts.push(s("path", {class: name, d: paths[name].join("")}));
    top += free.length * tall + 8;
  }
  for (const tick of ticks(whole / 1e9, Math.max(2, width / 110)))
    parts.unshift(s("path", {class: "rule", d: `M${at(x(tick * 1e9))} 4V${top}`}),
      word(x(tick * 1e9), top + 12, tick ? many(tick) : "0 s", tick ? "middle" : "start"));
  const tip = s("title");
  const drawing = canvas(width, top + 16, "Calls over the time of the run", tip, parts);
  const under = (event) => {
    const box = drawing.getBoundingClientRect(), scale = width / box.width;
    const px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
    return places.find(([call, from, to]) => py >= from && py < to && px >= x(call.start_ns) - 1 &&
      px <= x(call.start_ns + call.duration_ns) + 1)?.[0];
  };
  drawing.addEventListener("mousemove", (event) => {
    const call = under(event);
    drawing.classList.toggle("hit", Boolean(call));
    tip.textContent = call ? `${nameOf(call)}: ${when(call)}` : "";
  });
  drawing.addEventListener("click", (event) => {
    const call = under(event);
    if (call) location.hash = `call-${call.id}`;
  });
  return figure("Calls over time", key([...PHASES, "other"], (name) => name), drawing,
    places.length ? "In seconds. A click on a call leads to its texts." :
      "In seconds: how many calls were in each phase.", true);
}

function latencyPlot(width) {
  const calls = page.calls.filter((one) => one.status === "ok" && !one.attributes.from_cache);
  if (!calls.length) return null;
  const log = (ns) => Math.log10(Math.max(ns, 1));
  const logs = calls.map((call) => log(call.duration_ns));
  const [low, high] = [Math.min, Math.max].map((one) => logs.reduce((a, b) => one(a, b)));
  const span = Math.max(0.3, high - low), x = (ns) => width * (log(ns) - low) / span;
  const bins = 32, height = 150, step = width / bins, totals = Array(bins).fill(0);
  const models = page.report.models.filter((one) => one.duration);
  const counts = new Map(models.map((one) => [one.name, Array(bins).fill(0)]));
  calls.forEach((call, index) => {
    const bin = Math.min(bins - 1, Math.floor(bins * (logs[index] - low) / span));
    counts.get(call.model)[bin] += 1;
    totals[bin] += 1;
  });
  const scale = (height - 24) / Math.max(...totals), base = Array(bins).fill(height);
  const bar = (count, bin) => count === 0 ? "" :
    rect(bin * step + 0.5, base[bin] -= count * scale, step - 1, count * scale);
  const bars = models.map(({name}) =>
    s("path", {class: modelClass(name), d: counts.get(name).map(bar).join("")}));
  const medians = models.map((one) =>
    s("path", {class: "limit", d: `M${at(x(one.duration.p50_ns))} 12V${height}`}));
  const labels = [0, 1, 2, 3, 4].map((n) => word(width * n / 4, height + 14,
    time(10 ** (low + span * n / 4)), n === 0 ? "start" : n === 4 ? "end" : "middle"));
  return figure("How long calls took", key(models.map((one) => one.name), modelClass),
    canvas(width, height + 18, "How many calls took how long", bars, medians,
      s("path", {class: "rule", d: `M0 ${height}H${width}`}), labels),
    models.map(({name, duration}) => `${name}: median (dashed) ${time(duration.p50_ns)}` +
      (duration.p95_ns ? `, 95th percentile ${time(duration.p95_ns)}` : "")).join("; ") + ".");
}

function speedPlot(width) {
  const rows = page.report.models.map((model) => {
    const known = page.report.speed_limits.filter((one) => one.bound !== "unknown");
    const limit = known.find((one) => one.model === model.name) ?? {};
    const bounds = [["memory", limit.memory_limit], ["computing", limit.compute_limit]];
    const [bound] = bounds.filter((one) => one[1]).sort((a, b) => a[1] - b[1]);
    return {name: model.name, rate: limit.tokens_per_s ?? model.decode_tokens_per_s, bound};
  }).filter((row) => row.rate !== null);
  if (!rows.length) return null;
  const most = Math.max(...rows.map((row) => Math.max(row.rate, row.bound?.[1] ?? 0)));
  const bars = rows.map(({name, rate, bound}, index) => {
    const y = index * 44, said = (speed) => many(+speed.toPrecision(3)), x = width / most;
    return [word(0, y + 12, `${name}: ${said(rate)} tokens/s` + (bound ? `; ${bound[0]} allows ` +
      `${said(bound[1])}, of which it reached ${(100 * rate / bound[1]).toFixed(0)} %` : "")),
    s("rect", {class: modelClass(name), x: 0, y: y + 18, width: rate * x, height: 14, rx: 2}),
    bound && s("path", {class: "limit", d: `M${at(bound[1] * x - 1)} ${y + 15}v20`})];
  });
  return figure("How quickly models wrote", null,
    canvas(width, rows.length * 44, "Tokens a second", bars), rows.some((row) => row.bound)
      ? "The limit of this machine is dashed." : "No limit of a machine is known.");
}

function scorePlot({rounds}, {composites, node}, width) {
  const scores = scoresOf(rounds), height = 170;
  const names = [...new Set(scores.flat().map((score) => score.name))];
  const all = [...composites, ...scores.flat().map((score) => score.score)], top = scaleTop(all);
  const low = Math.max(0, Math.floor(Math.min(...all) - top / 10)), last = composites.length - 1;
  const x = (n) => 26 + n / last * (width - 40);
  const y = (score) => 8 + (top - score) / (top - low) * (height - 28);
  const line = (look, points) => points.length > 0 && s("path", {class: `line ${look}`,
    d: "M" + points.map(([n, score]) => `${at(x(n))} ${at(y(score))}`).join("L")});
  const look = (name, index) => name === "composite" ? "whole" : `m${index % 6}`;
  return figure(`Scores by round: ${node ?? "loop"}`, key([...names, "composite"], look),
    canvas(width, height, "Scores by round",
      [low, (low + top) / 2, top].map((tick) => [word(19, y(tick) + 4, tick, "end"),
        s("path", {class: "rule", d: `M24 ${at(y(tick))}H${width}`})]),
      names.map((name, index) => line(look(name, index), scores.flatMap((of, n) =>
        of.filter((score) => score.name === name).map((score) => [n, score.score])))),
      line("main", composites.map((score, n) => [n, score])),
      composites.map((score, n) => [s("circle", {class: "whole", cx: x(n), cy: y(score), r: 3.5}),
        n % Math.ceil((last + 1) / 12) === 0 && word(x(n), height - 3, n + 1, "middle")])));
}

function drawPlots() {
  if (!page.calls.length) return [note("No model was called.")];
  const whole = $("plots-body").clientWidth || 1100, half = whole > 850 ? whole / 2 - 20 : whole;
  const loops = page.loops.map((loop, index) => [loop, page.report.loops[index]])
    .filter(([, recorded]) => recorded.composites.length > 1).slice(0, 6);
  return [timelinePlot(whole), latencyPlot(half), speedPlot(half),
    ...loops.map(([loop, recorded]) => scorePlot(loop, recorded, half))].filter(Boolean);
}

// --- calls ------------------------------------------------------------------------------------

const inOrder = (call) => [...call.phases].sort((a, b) => a[1] - b[1]);
function bar(call, look) {
  const phases = inOrder(call), sum = phases.reduce((total, one) => total + one[2], 0);
  const whole = Math.max(call.duration_ns, sum) || 1;
  const title = phases.map(([name, , duration]) => `${name} ${time(duration)}`).join(", ");
  return h("div", {class: look, title}, phases.map(([name, , duration]) =>
    wide(h("i", {class: name}), duration / whole)));
}

const nameOf = ({node, role}) => [node, role].filter(Boolean).join(" · ") || "call";
function callRow(call) {
  const said = call.attributes, found = hits.has(call.reply) ? call.reply : call.prompt;
  const from = hits.get(found), of = from === undefined ? "" : textOf(found);
  return openable(`call-${call.id}`, {class: "call stop"}, [
    h("span", {class: "quiet number"}, call.id),
    h("span", {title: nameOf(call)}, marked(nameOf(call)),
      call.status !== "ok" && state(call.status), said.from_cache && state("from cache"),
      said.finish_reason === "length" && state("cut")),
    h("span", {class: "quiet", title: call.model}, call.model),
    h("span", {class: "quiet end start"}, time(call.start_ns)),
    h("span", {class: "end"}, time(call.duration_ns)), bar(call, "bar"),
    h("span", {class: "quiet end tokens"},
      `${many(said.input_tokens)} → ${many(said.output_tokens)}`),
    h("span", {class: "quiet end cost"}, call.cost_usd !== null && usd(call.cost_usd)),
    of && h("span", {class: "snippet"}, marked(of.slice(Math.max(0, from - 60), from + 200))),
  ], () => callInside(call));
}

// The journal has a conversation as one text; see `conversation_text`.
function messages(text) {
  const parts = text.split(/(?:^|\n\n)\[(system|user|assistant)\]\n/);
  return parts.length < 3 ? [["prompt", text]]
    : Array.from({length: (parts.length - 1) / 2}, (_, n) => parts.slice(2 * n + 1, 2 * n + 3));
}
const message = (role, text, look = "") =>
  h("div", {class: `message ${look}`}, h("div", {class: "role"}, role), prose(text));

function callInside(call) {
  const prompt = textOf(call.prompt), reply = textOf(call.reply);
  const value = (name, one) => name.endsWith("_ns") ? time(one)
    : typeof one === "number" ? many(one) : `${one}`;
  const rows = [["node", call.node], ["role", call.role], ["model", call.model],
    ["when", when(call)],
    ["cost", call.cost_usd === null ? null : usd(call.cost_usd)],
    ...Object.entries(call.attributes).map(([name, one]) =>
      [name.replace(/_ns$/, "").replaceAll("_", " "), one === null ? null : value(name, one)]),
    ["unreliable", call.unreliable.join(", ") || null]].filter((row) => row[1] !== null);
  const track = encodeURIComponent(`model ${call.model}`);
  const slice = `timeline.html#slice=${call.start_ns},${call.duration_ns},${track}`;
  return h("div", {class: "inside"}, h("div", null, bar(call, "bar tall"),
    h("div", {class: "key"}, inOrder(call).map(([name, , duration]) =>
      h("span", null, h("i", {class: name}), `${name} ${time(duration)}`))),
    call.error && h("p", {class: "bad"}, call.error),
    prompt === null ? note("No prompt is recorded.")
      : messages(prompt).map(([role, text]) => message(role, text)),
    reply === null ? note("No reply is recorded.") : message("reply", reply, "reply")),
  h("div", null, h("dl", null, rows.map((row) => [h("dt", null, row[0]), h("dd", null, row[1])])),
    note("In ", LIVE ? h("a", {href: slice, target: "_blank", rel: "noopener"}, "Perfetto")
      : "Perfetto", ": ", h("code", null, `${page.open_command} --span ${call.id}`))));
}

// A list is cut into hundreds, each drawn when it comes near the window.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) fillChunk(entry.target);
}, {rootMargin: "1200px"});
function fillChunk(chunk) {
  near.unobserve(chunk);
  if (chunk.childElementCount) return;
  chunk.style.height = "";
  chunk.append(...chunk.make());
}
function drawList(list, members, draw) {
  const old = [...list.children];
  for (let from = 0, n = 0; from < members.length; from += CHUNK, n += 1) {
    const some = members.slice(from, from + CHUNK);
    const signature = JSON.stringify([query?.source, some]);
    if (old[n]?.signature === signature) continue;
    const chunk = h("div", {class: "chunk"});
    Object.assign(chunk, {signature, make: () => some.map(draw)});
    chunk.style.height = `calc(var(--row) * ${some.length})`;
    if (old[n]) old[n].replaceWith(chunk); else list.append(chunk);
    near.observe(chunk);
  }
  old.slice(Math.ceil(members.length / CHUNK)).forEach((chunk) => chunk.remove());
  for (const chunk of list.children) {  // at once what is to be seen, and where there is little
    const {top, bottom} = chunk.getBoundingClientRect();
    if (members.length <= 3 * CHUNK || (bottom > 0 && top < innerHeight)) fillChunk(chunk);
  }
}

// --- rows of a batch --------------------------------------------------------------------------

const itemsOf = (name) => page.columns.flat().find((node) => node.name === name)?.items ?? [];
const rows = () => itemsOf(page.rows).filter((item) => !item.label.includes("/"));

const partsOf = (row) => itemsOf(page.rows).filter((one) => one.label.startsWith(`${row.label}/`));

function drawRow(row) {
  const gave = textOf(row.gave), from = hits.get(row.gave) ?? 0;
  const inner = row.error && partsOf(row).find((one) => one.status === "failed");
  const error = inner?.error ?? row.error;
  return openable(`row-${row.label}`, {class: "row"}, [h("span", null, marked(row.label)),
    h("span", {class: "quiet text-line"},
      marked((error ?? gave ?? "").slice(Math.max(0, from - 60), from + 200))),
    h("span", null, state(row.status)),
    h("span", {class: "end"}, row.score !== null && +row.score.toFixed(2)),
    h("span", {class: "quiet end"}, row.cost_usd !== null && usd(row.cost_usd)),
    h("span", {class: "end"}, row.start_ns !== null && time(row.duration_ns))],
  () => rowInside(row, gave));
}

function rowInside(row, gave) {
  const parts = partsOf(row);
  const scores = page.columns.flat().flatMap((node) => node.items)
    .filter((item) => item.label === row.label.replace(page.rows, "scores") && item !== row);
  const calls = page.calls.filter((call) =>
    call.node === row.label || call.node?.startsWith(`${row.label}/`));
  return [row.error && h("p", {class: "bad"}, row.error), gave !== null && prose(gave),
    [...parts, ...scores].map((item) => openable(`part-${item.label}`, {class: "item"},
      [item.label, state(item.status), " ", item.start_ns !== null && quiet(when(item))],
      () => [item.error && h("p", {class: "bad"}, item.error),
        item.gave === null ? note("No output is recorded.") : prose(textOf(item.gave))])),
    calls.length > 0 && note("Calls: ", calls.map((call) =>
      [h("a", {href: `#call-${call.id}`}, `${call.id}`), " "]))];
}

function search() {
  const said = $("search").value.trim(), {calls, texts} = page;
  query = said ? new RegExp(said.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i") : null;
  hits = new Map();
  if (query) texts.forEach((text, index) => {
    const found = text.search(query);
    if (found >= 0) hits.set(index, found);
  });
  shown = !query ? calls : calls.filter((call) => hits.has(call.prompt) || hits.has(call.reply) ||
    query.test(nameOf(call)) || query.test(call.model));
  shownRows = !query ? rows() : rows().filter((row) => hits.has(row.gave) ||
    query.test(row.label) || query.test(row.status) || query.test(row.error ?? ""));
  $("no-texts").hidden = page.has_texts || !calls.length;
  drawList($("rows-body"), shownRows, drawRow);
  drawList($("calls-body"), shown, callRow);
  const matches = [`${many(shown.length)} of ${counted(calls.length, "call")}`,
    page.rows && `${many(shownRows.length)} of ${counted(rows().length, "row")}`];
  $("found").textContent = query ? matches.filter(Boolean).join(", ") : "";
}

function drawEvents() {
  if (!page.events.length) return [note("No warning, and nothing was tried again.")];
  return page.events.slice(0, 1000).map((one) => h("p", null, quiet(time(one.time_ns), " "),
    h("b", null, one.kind), one.where && ` in ${one.where}`, one.message && `: ${one.message}`,
    quiet(" ", one.figures.map((figure) => figure.join(" ")).join(", "))));
}

// --- moving about -----------------------------------------------------------------------------

function focusOn(row) {
  row.firstChild.focus({preventScroll: true});
  const {top} = row.getBoundingClientRect();
  if (top < 60 || top > innerHeight - 80) scrollBy(0, top - 90);
}
function goTo(index) {
  fillChunk($("calls-body").children[Math.floor(index / CHUNK)]);
  focusOn($(`call-${shown[index].id}`));
}
function reveal() {
  const row = rows().findIndex((one) => `#row-${one.label}` === decodeURIComponent(location.hash));
  if (row >= 0) {
    opened.add(`row-${rows()[row].label}`);
    fillChunk($("rows-body").children[Math.floor(row / CHUNK)]);
    $(`row-${rows()[row].label}`).open = true;
    focusOn($(`row-${rows()[row].label}`));
  }
  const id = location.hash.match(/^#call-(\d+)$/)?.[1];
  const find = () => shown.findIndex((call) => `${call.id}` === id);
  if (!id) return;
  if (find() < 0) { $("search").value = ""; search(); }
  if (find() < 0) return;
  opened.add(`call-${id}`);
  if ($(`call-${id}`)) $(`call-${id}`).open = true;
  goTo(find());
}
function step(by) {
  const rounds = [...document.querySelectorAll(".round")];
  const here = document.activeElement.closest(".stop");
  const index = !here ? -1 : here.matches(".round") ? rounds.indexOf(here)
    : rounds.length + shown.findIndex((call) => `call-${call.id}` === here.id);
  const last = rounds.length + shown.length - 1, to = Math.max(0, Math.min(last, index + by));
  if (to < rounds.length) focusOn(rounds[to]); else if (shown.length) goTo(to - rounds.length);
}

let width = innerWidth;
searchable(() => {
  search();
  if (query) $(shownRows.length ? "rows" : "calls").scrollIntoView();
});
addEventListener("hashchange", reveal);
addEventListener("keydown", (event) => {
  if (event.target === $("search") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
});
addEventListener("resize", () => {
  if (innerWidth !== width) $("plots-body").replaceChildren(...drawPlots());
  width = innerWidth;
});

// --- all of it, and news ----------------------------------------------------------------------

function draw() {
  const {report} = page, rows = [...document.querySelectorAll(".stop, .node")];
  const anchor = rows.find((row) => row.getBoundingClientRect().top >= 0);
  const before = anchor?.getBoundingClientRect().top;
  const focused = document.activeElement.closest(".stop, .node")?.id;
  drawHead();
  drawResult();
  for (const [name, from, make] of [["graph", page.columns, drawGraph],
    ["loops", [page.loops, report.loops], drawLoops], ["events", page.events, drawEvents],
    ["plots", [page.calls, report.models, report.loops, report.duration_ns], drawPlots]]) {
    const signature = JSON.stringify(from);
    if (drawn.get(name) !== signature) $(`${name}-body`).replaceChildren(...make());
    drawn.set(name, signature);
  }
  $("loops").hidden = !page.loops.length;
  $("rows").hidden = !page.rows;
  $("graph").hidden = !page.columns.length;
  for (const link of document.querySelectorAll("nav a")) link.hidden = $(link.hash.slice(1)).hidden;
  search();
  const again = anchor && $(anchor.id);  // what the reader looks at stays where it is
  if (again && scrollY > 0) scrollBy(0, again.getBoundingClientRect().top - before);
  const row = focused && $(focused);
  if (row) (row.querySelector("summary") ?? row).focus({preventScroll: true});
}

async function news() {
  const began = performance.now();
  let said = "";
  try {
    const answer = await fetch(`run.json?${encodeURIComponent(page.version)}`);
    if (answer.status === 200) { page = await answer.json(); draw(); }
    else if (answer.status !== 204) said = " · the journal cannot be read just now";
  } catch { said = " · no longer served: this is how it was"; }
  $("live").textContent = said;
  setTimeout(news, Math.max(2000, 10 * (performance.now() - began)));
}

opened.add(`round-1-${page.report.loops[0]?.best_round}`);
draw();
reveal();
if (LIVE) setTimeout(news, 2000);
