"use strict";
// Draws one run from the JSON in the page, and again when a server has news. A text only ever
// becomes a text node, so nothing that a model wrote can run here.

const $ = (id) => document.getElementById(id);
const LIVE = document.body.dataset.live === "yes";
const CHUNK = 100, PHASES = ["overhead", "queue", "load", "prefill", "decode"];
let page = JSON.parse($("data").textContent);
let shown = [];        // the calls in the list: all, or those that the search found
let query = null;      // a regular expression while there is a search
let hits = new Map();  // by index of a text: where the search found it first
const opened = new Set();  // ids of what the reader has opened; they outlive a redrawing
const drawn = new Map();   // by part of the page: what it was drawn from

// --- elements and words -----------------------------------------------------------------------

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}
const h = (tag, props, ...children) => filled(document.createElement(tag), props, children);
const svg = (tag, props, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);

const many = (count) => count === null || count === undefined ? "–" : count.toLocaleString("en");
const counted = (count, what) => `${many(count)} ${what}${count === 1 ? "" : "s"}`;
const usd = (cost) => "$" + (cost >= 1 ? cost.toFixed(2) : cost.toPrecision(3));
function time(ns) {
  if (ns === null || ns === undefined) return "–";
  const ms = ns / 1e6, s = ns / 1e9;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${ms.toFixed(0)} ms`;
  if (s < 99.5) return `${s.toFixed(s < 9.995 ? 2 : 1)} s`;
  return s < 5940 ? `${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${(s / 3600).toFixed(1)} h`;
}
const GOOD = ["ok", "done", "finished", "passed"];
const tone = (state) => GOOD.includes(state) ? "good" : ["failed", "error"].includes(state) ? "bad" : "wait";
const state = (said) => h("span", {class: `state ${tone(said)}`}, said);
const textOf = (index) => index === null ? null : page.texts[index];
const short = (text, chars) => text.length > chars ? text.slice(0, chars) + " …" : text;

// A text with what the search found marked in it.
function marked(text) {
  if (!query) return [text];
  const parts = [], all = new RegExp(query.source, "gi");
  let from = 0;
  for (const found of text.matchAll(all)) {
    parts.push(text.slice(from, found.index), h("mark", null, found[0]));
    from = found.index + found[0].length;
    if (parts.length > 400) break;
  }
  return [...parts, text.slice(from)];
}
function prose(text) {
  const isCode = /^\s*[[{]/.test(text);
  return h("div", {class: isCode ? "text code" : "text"}, marked(text));
}

// Something to open, whose inside is drawn when it is opened first.
function openable(id, props, summary, inside) {
  const box = h("details", {id, ...props}, h("summary", null, summary));
  const fill = () => box.children.length > 1 || box.append(h("div", null, inside()));
  if (opened.has(id)) { box.open = true; fill(); }
  box.addEventListener("toggle", () => {
    if (!box.isConnected) return;
    if (box.open) { opened.add(id); fill(); } else opened.delete(id);
    if (box.open && id.startsWith("call-")) history.replaceState(null, "", `#${id}`);
  });
  return box;
}
const wide = (element, share) => { element.style.width = `${100 * share}%`; return element; };

// --- head -------------------------------------------------------------------------------------

function drawHead() {
  const began = new Date(page.wall_ns / 1e6), sum = (of) => page.models.reduce((n, one) => n + one[of], 0);
  $("name").replaceChildren(page.pipeline, state(page.status));
  $("about").replaceChildren(`Run ${page.run_id}, ${began.toLocaleString()}`,
    page.parts > 1 ? `, resumed ${page.parts - 1} times` : "", h("span", {id: "live"}));
  const last = page.loops.at(-1);
  const sums = [["Time", time(page.duration_ns)], ["Calls", many(page.calls.length)],
    ["Tokens in", many(sum("input_tokens"))], ["Tokens out", many(sum("output_tokens"))],
    page.cost_usd !== null && ["Cost", usd(page.cost_usd)],
    last && ["Score by round", last.recorded.composites.join(" → ") || "–"]];
  $("sums").replaceChildren(...sums.filter(Boolean).map(([what, said]) =>
    h("div", null, h("dt", null, what), h("dd", null, said))));
  const failed = page.columns.flat().flatMap((node) => node.items).filter((item) => item.status === "failed");
  const lost = page.calls.filter((call) => call.status === "error");
  $("failures").replaceChildren(...[
    page.error && h("p", {class: "bad"}, "The run failed: ", page.error),
    ...failed.slice(0, 20).map((item) => h("p", {class: "bad"}, `${item.label} failed: `, item.error)),
    lost.length > 0 && h("p", {class: "bad"}, `${counted(lost.length, "call")} failed: `,
      lost.slice(0, 20).map((call) => [h("a", {href: `#call-${call.id}`}, `call ${call.id}`), " "])),
  ].filter(Boolean));
}

// --- graph ------------------------------------------------------------------------------------

function drawGraph() {
  const nodes = page.columns.flat();
  if (!nodes.length) return [h("p", {class: "quiet"}, "No node began.")];
  const panel = h("div", {class: "panel", hidden: true});
  const boxes = new Map(nodes.map((node) => [node.name, box(node)]));
  function show(node, isOpen) {
    for (const [name, one] of boxes) one.setAttribute("aria-expanded", isOpen && name === node.name);
    for (const one of nodes) opened.delete(`node-${one.name}`);
    if (isOpen) opened.add(`node-${node.name}`);
    panel.hidden = !isOpen;
    panel.replaceChildren(h("h3", null, node.name), ...node.items.map((item, index) => openable(
      `item-${node.name}-${index}`, {class: "item", ...(node.items.length === 1 && {open: true})},
      [item.label, state(item.status), " ", h("span", {class: "quiet"}, item.start_ns === null ? "" :
        `${time(item.duration_ns)} from ${time(item.start_ns)}`)],
      () => [item.error && h("p", {class: "bad"}, item.error), item.gave === null
        ? h("p", {class: "quiet"}, "No output is recorded.") : prose(textOf(item.gave))])));
    const only = node.items.length === 1 && panel.querySelector("details");
    if (isOpen && only) only.open = true;
  }
  function box(node) {
    const {seen, items} = node, first = items.map((item) => textOf(item.gave)).find((text) => text);
    const hover = (on) => () => node.needs.forEach((name) => boxes.get(name)?.classList.toggle("needed", on));
    return h("button", {class: `node ${seen.status}`, id: `node-${node.name}`, "aria-expanded": "false",
      onclick: (event) => show(node, event.currentTarget.getAttribute("aria-expanded") !== "true"),
      onmouseenter: hover(true), onmouseleave: hover(false)},
      h("b", null, node.name), items.length > 1 && ` × ${items.length}`, seen.is_critical &&
        h("span", {class: "quiet", title: "on the critical path"}, " ●"),
      seen.status !== "done" && state(seen.status),
      h("p", {class: "quiet"}, [time(seen.busy_ns), seen.calls && counted(seen.calls, "call"),
        seen.calls && `${many(seen.input_tokens)} → ${many(seen.output_tokens)} tokens`]
        .filter(Boolean).join(" · ")),
      node.needs.length > 0 && h("p", {class: "quiet"}, `← ${node.needs.join(", ")}`),
      items.length > 1 && h("div", {class: "squares"}, items.slice(0, 60).map((item) =>
        h("i", {class: item.status, title: `${item.label}: ${item.status}`}))),
      first && h("p", {class: "gave"}, short(first, 200)));
  }
  const chosen = nodes.find((node) => opened.has(`node-${node.name}`));
  if (chosen) show(chosen, true);
  return [h("div", {class: "columns"}, page.columns.map((column) =>
    h("div", {class: "column"}, column.map((node) => boxes.get(node.name))))), panel,
    h("p", {class: "quiet"}, "● is on the critical path, which decided how long the run took.")];
}

// --- loops ------------------------------------------------------------------------------------

function drawLoops() {
  return page.loops.map((loop, number) => {
    const {recorded, rounds} = loop;
    return h("div", {class: "loop"},
      h("h3", null, recorded.node ?? `Loop ${number + 1}`, recorded.passed !== null &&
        state(recorded.passed ? "passed" : "not passed")),
      h("p", null, `By rubric ${recorded.rubric}: `, recorded.composites.join(" → ")),
      h("p", {class: "quiet"}, `Stopped: ${loop.stop}. `, recorded.best_round !== null &&
        `Round ${recorded.best_round} is returned.`),
      loop.unreadable && h("p", {class: "wait"}, loop.unreadable),
      rounds.map((round) => drawRound(round, number, rounds, recorded.best_round)));
  });
}

const gained = (gain) => Math.abs(gain) > 1e-9 && h("span", {class: gain > 0 ? "good" : "bad"},
  `${gain > 0 ? "+" : "−"}${+Math.abs(gain).toFixed(2)} `);
// A draft's headings stand out.
const headed = (text) => text.split(/^(#{1,6} .*)$/m).map((one, n) => n % 2 ? h("strong", null, one) : one);

function drawRound(round, loop, rounds, best) {
  const base = rounds.find((one) => one.number === round.base);
  const gain = base ? round.composite - base.composite : 0;
  const said = [round.base ? `from round ${round.base}` : "the first draft",
    round.changed_chars > 0 && `${many(round.changed_chars)} characters changed`,
    round.spent.calls > 0 && counted(round.spent.calls, "call"), time(round.spent.time_ns)];
  const id = `round-${loop + 1}-${round.number}`;
  return openable(id, {class: `round stop${round.number === best ? " best" : ""}`},
    [h("b", null, `Round ${round.number}: ${round.composite}`), gained(gain), round.passed && state("passed"), " ", h("span", {class: "quiet"}, said.filter(Boolean).join(" · "))],
    () => {
      const top = scaleTop(rounds.flatMap((one) => one.scores.map((score) => score.score)));
      const was = Object.fromEntries((base?.scores ?? []).map((score) => [score.name, score.score]));
      return [h("table", null, h("tbody", null, round.scores.map((score) => h("tr", null,
        h("td", {class: "name"}, score.name), h("td", {class: "number"}, score.score,
          score.spread !== null && ` ±${score.spread.toPrecision(2)}`),
        h("td", {class: "number"}, gained(score.score - (was[score.name] ?? score.score))),
        h("td", {class: "number"}, h("div", {class: "meter"}, wide(h("i"), score.score / top))),
        h("td", {class: "quiet"}, score.why.map((line) => h("p", null, line))))))),
        round.remarks.length > 0 && h("p", {class: "quiet"}, `Remarks: ${round.remarks.join("; ")}.`),
        round.sections.map((section) => h("div", {class: "section"},
          h("div", {class: "text"}, section.parts.map(([op, text]) =>
            op === "=" ? headed(text) : h(op === "+" ? "ins" : "del", null, headed(text)))),
          h("ul", {class: "notes"}, section.notes.map(([name, message]) =>
            h("li", null, h("b", null, name), ": ", message))))),
        round.candidates.length > 0 && h("h3", null, "Candidates"),
        round.candidates.map((one, index) => openable(`${id}-candidate-${index}`, {class: "item"},
          [h("span", {class: `outcome ${one.outcome}`}, one.outcome.replace("_", " ")),
           ` · ${one.section ?? "the draft"}, number ${one.number}`,
           one.checked !== null && ` · by the checks ${one.checked.toFixed(2)}`],
          () => [one.error && h("p", {class: "bad"}, one.error), one.text && prose(one.text)]))];
    });
}

// --- plots ------------------------------------------------------------------------------------

const scaleTop = (scores) => { const most = Math.max(0, ...scores); return most <= 1 ? 1 : most <= 10 ? 10 : most; };
const key = (names, classOf) => h("div", {class: "key"}, names.map((name, index) =>
  h("span", null, h("i", {class: classOf(name, index)}), name)));
const modelClass = (name) => `m${Math.max(0, page.models.findIndex((one) => one.name === name)) % 6}`;
function figure(title, legend, drawing, caption, isWhole) {
  return h("figure", {class: isWhole && "whole"}, h("figcaption", null, title), legend, drawing,
    caption && h("p", {class: "quiet"}, caption));
}
function canvas(width, height, label, ...children) {
  return svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label}, ...children);
}
function ticks(most, count) {
  const raw = most / count, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((n) => n * power).find((one) => one >= raw) || 1;
  return Array.from({length: Math.floor(most / step + 1e-9) + 1}, (_, n) => +(n * step).toPrecision(6));
}

function timelinePlot(width) {
  const left = 0, seconds = page.duration_ns / 1e9 || 1, x = (ns) => left + (ns / page.duration_ns || 0) * (width - left);
  const parts = [], places = [];
  let top = 4;
  for (const model of page.models) {
    const calls = page.calls.filter((call) => call.model === model.name), lanes = [], laneOf = [];
    for (const call of calls) {
      let lane = lanes.findIndex((free) => free <= call.start_ns);
      if (lane < 0) lane = lanes.push(0) - 1;
      lanes[lane] = call.start_ns + call.duration_ns;
      laneOf.push(lane);
    }
    const tall = Math.max(2, Math.min(18, 150 / lanes.length)), paths = {};
    parts.push(svg("text", {x: 0, y: top + 9}, model.name));
    top += 15;
    const rect = (name, start, duration, lane) => {
      const wide = Math.max(0.7, x(duration) - left);
      paths[name] = (paths[name] ?? "") + `M${x(start).toFixed(1)} ${(top + lane * tall).toFixed(1)}h${
        wide.toFixed(1)}v${(tall * 0.86).toFixed(1)}h-${wide.toFixed(1)}z`;
    };
    calls.forEach((call, index) => {
      rect("other", call.start_ns, call.duration_ns, laneOf[index]);
      for (const [name, start, duration] of call.phases) rect(name, start, duration, laneOf[index]);
      places.push([call, top + laneOf[index] * tall, tall]);
    });
    for (const name of ["other", ...PHASES]) if (paths[name]) parts.push(svg("path", {class: name, d: paths[name]}));
    top += lanes.length * tall + 8;
  }
  for (const tick of ticks(seconds, Math.max(2, width / 110)))
    parts.unshift(svg("path", {class: "rule", d: `M${x(tick * 1e9).toFixed(1)} 4V${top}`}),
      svg("text", {x: x(tick * 1e9), y: top + 12, "text-anchor": tick ? "middle" : "start"}, tick ? many(tick) : "0 s"));
  const drawing = canvas(width, top + 16, "Calls by model over the time of the run", parts);
  const at = (event) => {
    const box = drawing.getBoundingClientRect(), scale = width / box.width;
    const px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
    return places.find(([call, y, tall]) => py >= y && py < y + tall && px >= x(call.start_ns) - 2 &&
      px <= x(call.start_ns + call.duration_ns) + 2)?.[0];
  };
  const tip = svg("title"), under = {call: null};
  drawing.prepend(tip);
  drawing.addEventListener("mousemove", (event) => {
    const call = at(event);
    if (call === under.call) return;
    under.call = call;
    drawing.classList.toggle("hit", Boolean(call));
    tip.textContent = call ? `${call.label}: ${time(call.duration_ns)} from ${time(call.start_ns)}` : "";
  });
  drawing.addEventListener("click", (event) => { const call = at(event); if (call) location.hash = `call-${call.id}`; });
  return figure("Calls over time", key([...PHASES, "other"], (name) => name), drawing,
    "In seconds. A call leads to its texts.", true);
}

function latencyPlot(width) {
  const calls = page.calls.filter((call) => call.status === "ok" && !call.from_cache && call.duration_ns > 0);
  if (!calls.length) return null;
  const log = (call) => Math.log10(call.duration_ns), low = Math.min(...[calls].flat().map(log));
  const span = Math.max(0.3, calls.reduce((most, call) => Math.max(most, log(call)), 0) - low);
  const bins = 32, names = page.models.map((one) => one.name), height = 150, counts = names.map(() => Array(bins).fill(0));
  for (const call of calls)
    counts[names.indexOf(call.model)][Math.min(bins - 1, Math.floor(bins * (log(call) - low) / span))] += 1;
  const totals = counts[0].map((_, bin) => counts.reduce((n, one) => n + one[bin], 0)), most = Math.max(...totals);
  const wide = width / bins, base = totals.map(() => 0), x = (ns) => width * (Math.log10(ns) - low) / span;
  const bars = names.map((name, index) => svg("path", {class: modelClass(name), d: counts[index].map((count, bin) => {
    const tall = count / most * (height - 24), y = height - base[bin] - tall;
    base[bin] += tall;
    return count ? `M${(bin * wide + 0.5).toFixed(1)} ${y.toFixed(1)}h${(wide - 1).toFixed(1)}v${tall.toFixed(1)}h-${(wide - 1).toFixed(1)}z` : "";
  }).join("")}));
  const labels = [0, 1, 2, 3, 4].map((n) => svg("text", {x: width * n / 4, y: height + 14,
    "text-anchor": n === 0 ? "start" : n === 4 ? "end" : "middle"}, time(10 ** (low + span * n / 4))));
  const lines = page.models.filter((one) => one.duration).map((one) => svg("path", {class: "limit",
    d: `M${x(one.duration.p50_ns).toFixed(1)} 12V${height}`}, svg("title", null, `median of ${one.name}`)));
  return figure("How long calls took", key(names, modelClass), canvas(width, height + 18,
    "Histogram of the durations of calls", bars, lines, svg("path", {class: "rule", d: `M0 ${height}H${width}`}), labels),
    page.models.filter((one) => one.duration).map((one) => `${one.name}: median ${time(one.duration.p50_ns)}` +
      (one.duration.p95_ns === null ? "" : `, 95th percentile ${time(one.duration.p95_ns)}`)).join("; "));
}

function speedPlot(width) {
  const rows = page.models.map((model) => {
    const limit = page.speed_limits.find((one) => one.model === model.name);
    const bounds = limit ? [["memory", limit.memory_limit], ["computing", limit.compute_limit]].filter((one) => one[1]) : [];
    return {model, rate: limit?.tokens_per_s ?? model.decode_tokens_per_s, bound: bounds.sort((a, b) => a[1] - b[1])[0]};
  }).filter((row) => row.rate !== null);
  if (!rows.length) return null;
  const most = Math.max(...rows.map((row) => Math.max(row.rate, row.bound?.[1] ?? 0))), x = (rate) => rate / most * width;
  return figure("How quickly models wrote", null, canvas(width, rows.length * 44, "Tokens a second by model",
    rows.map(({model, rate, bound}, index) => [
      svg("text", {x: 0, y: index * 44 + 12}, `${model.name}: ${rate.toFixed(1)} tokens/s` +
        (bound ? `; ${bound[0]} allows ${bound[1].toFixed(1)}, ${(100 * rate / bound[1]).toFixed(0)} % of it reached` : "")),
      svg("rect", {class: modelClass(model.name), x: 0, y: index * 44 + 18, width: x(rate), height: 14, rx: 2}),
      bound && svg("path", {class: "limit", d: `M${x(bound[1]) - 1} ${index * 44 + 15}v20`})])),
    rows.some((row) => row.bound) ? "The dashed line is the limit of this machine." : "The limits of this machine are not known.");
}

function scorePlot(loop, height, width) {
  const {recorded, rounds} = loop, count = recorded.composites.length;
  const names = [...new Set(rounds.flatMap((round) => round.scores.map((score) => score.name)))];
  const all = [...recorded.composites, ...rounds.flatMap((round) => round.scores.map((score) => score.score))];
  const top = scaleTop(all), low = Math.max(0, Math.floor(Math.min(...all) - top / 10));
  const x = (n) => 22 + (count > 1 ? n / (count - 1) : 0.5) * (width - 34), y = (score) => 8 + (top - score) / (top - low) * (height - 26);
  const path = (points) => "M" + points.map(([n, score]) => `${x(n).toFixed(1)} ${y(score).toFixed(1)}`).join("L");
  const line = (name, index) => svg("path", {class: `line m${index % 6}`, d: path(rounds.flatMap((round, n) =>
    round.scores.filter((score) => score.name === name).map((score) => [n, score.score])))});
  return h("div", null, key([...names, "composite"], (name, index) => name === "composite" ? "whole" : `m${index % 6}`),
    canvas(width, height, "Scores by round", [low, (low + top) / 2, top].map((tick) => [svg("path", {class: "rule",
      d: `M20 ${y(tick)}H${width}`}), svg("text", {x: 16, y: y(tick) + 4, "text-anchor": "end"}, tick)]),
      names.map(line), svg("path", {class: "line main", d: path(recorded.composites.map((score, n) => [n, score]))}),
      recorded.composites.map((score, n) => [svg("circle", {cx: x(n), cy: y(score), r: 3.5, fill: "currentColor"},
        svg("title", null, `round ${n + 1}: ${score}`)), (count < 12 || n % Math.ceil(count / 12) === 0) &&
        svg("text", {x: x(n), y: height - 3, "text-anchor": "middle"}, n + 1)])));
}

function drawPlots() {
  if (!page.calls.length) return [h("p", {class: "quiet"}, "No model was called.")];
  const whole = $("plots-body").clientWidth || 1100, half = whole > 850 ? (whole - 40) / 2 : whole;
  return [timelinePlot(whole), latencyPlot(half), speedPlot(half), ...page.loops.slice(0, 6)
    .filter((loop) => loop.recorded.composites.length > 1)
    .map((loop) => figure(`Scores by round: ${loop.recorded.node ?? "loop"}`, null, scorePlot(loop, 170, half)))].filter(Boolean);
}

// --- calls ------------------------------------------------------------------------------------

function bar(call, isTall) {
  const parts = [...call.phases].sort((a, b) => a[1] - b[1]), known = parts.reduce((sum, one) => sum + one[2], 0);
  const whole = Math.max(call.duration_ns, known) || 1;
  return h("div", {class: `bar${isTall ? " tall" : ""}`, title: parts.map((one) => `${one[0]} ${time(one[2])}`).join(", ")},
    parts.map(([name, , duration]) => wide(h("i", {class: name}), duration / whole)));
}

function callRow(call, number) {
  const said = call.attributes, hit = hits.get(call.reply) ?? hits.get(call.prompt);
  const text = hits.has(call.reply) ? textOf(call.reply) : hits.has(call.prompt) ? textOf(call.prompt) : "";
  return openable(`call-${call.id}`, {class: "call stop"}, [
    h("span", {class: "quiet number"}, `${call.id}`),
    h("span", {title: call.label}, marked(call.label), call.status !== "ok" && state(call.status),
      call.from_cache && state("from cache"), said.finish_reason === "length" && state("cut")),
    h("span", {class: "quiet", title: call.model}, call.model),
    h("span", {class: "quiet end start"}, time(call.start_ns)), h("span", {class: "end"}, time(call.duration_ns)),
    bar(call), h("span", {class: "quiet end"}, `${many(said.input_tokens)} → ${many(said.output_tokens)}`),
    h("span", {class: "quiet end cost"}, call.cost_usd === null ? "" : usd(call.cost_usd)),
    hit !== undefined && h("span", {class: "snippet"}, "… ", marked(text.slice(Math.max(0, hit - 60), hit + 200))),
  ], () => callInside(call));
}

// As `conversation_text` of the journal joins messages.
function messages(text) {
  const parts = text.split(/(?:^|\n\n)\[(system|user|assistant)\]\n/);
  return parts.length < 3 ? [["prompt", text]]
    : Array.from({length: (parts.length - 1) / 2}, (_, n) => [parts[2 * n + 1], parts[2 * n + 2]]);
}

function callInside(call) {
  const said = call.attributes, prompt = textOf(call.prompt), reply = textOf(call.reply);
  const what = (name) => name.endsWith("_ns") ? name.slice(0, -3) : name.replaceAll("_", " ");
  const value = (name, one) => name.endsWith("_ns") ? time(one) : typeof one === "number" ? many(one) : String(one);
  const rows = [["node", call.node], ["role", call.role], ["model", call.model],
    ["when", `${time(call.duration_ns)} from ${time(call.start_ns)}`], ["cost", call.cost_usd === null ? null : usd(call.cost_usd)],
    ...Object.entries(said).filter(([, one]) => one !== null).map(([name, one]) => [what(name), value(name, one)]),
    ["unreliable", call.unreliable.join(", ") || null]];
  const phases = [...call.phases].sort((a, b) => a[1] - b[1]).map(([name, , duration]) =>
    h("span", null, h("i", {class: name}), `${name} ${time(duration)}`));
  const command = `${page.open_command} --span ${call.id}`;
  return h("div", {class: "inside"}, h("div", null, bar(call, true), h("div", {class: "key"}, phases),
    call.error && h("p", {class: "bad"}, call.error),
    prompt === null ? h("p", {class: "quiet"}, "No prompt is recorded.") : messages(prompt).map(([role, text]) =>
      h("div", {class: "message"}, h("div", {class: "role"}, role), prose(text))),
    reply === null ? h("p", {class: "quiet"}, "No reply is recorded.")
      : h("div", {class: "message reply"}, h("div", {class: "role"}, "reply"), prose(reply))),
    h("div", null, h("dl", null, rows.filter((row) => row[1] !== null).map(([name, one]) => [h("dt", null, name), h("dd", null, one)])),
      h("p", {class: "quiet"}, LIVE ? [h("a", {href: `timeline.html#slice=${call.start_ns},${call.duration_ns}`,
        target: "_blank", rel: "noopener"}, "This call in Perfetto"), " or: "] : "In Perfetto: ", h("code", null, command))));
}

// The list is cut into hundreds, each drawn when it comes near the window.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) fillChunk(entry.target);
}, {rootMargin: "1200px"});
function fillChunk(chunk) {
  near.unobserve(chunk);
  if (chunk.childElementCount) return;
  const from = +chunk.dataset.from;
  chunk.style.height = "";
  chunk.append(...shown.slice(from, from + CHUNK).map(callRow));
}
function drawCalls() {
  const list = $("calls-body"), old = [...list.children];
  $("no-texts").hidden = page.has_texts || !page.calls.length;
  $("no-texts").textContent = "This run recorded no texts: prompts, replies and drafts are left out (content in [trace]).";
  for (let from = 0, n = 0; from < shown.length; from += CHUNK, n += 1) {
    const calls = shown.slice(from, from + CHUNK), signature = JSON.stringify([query?.source, calls]);
    if (old[n]?.signature === signature) continue;
    const chunk = h("div", {class: "chunk", "data-from": from});
    chunk.signature = signature;
    chunk.style.height = `calc(var(--row) * ${calls.length})`;
    if (old[n]) old[n].replaceWith(chunk); else list.append(chunk);
    near.observe(chunk);
  }
  old.slice(Math.ceil(shown.length / CHUNK)).forEach((chunk) => chunk.remove());
  if (!shown.length) list.replaceChildren();
}

function search() {
  const began = performance.now(), said = $("search").value.trim();
  query = said ? new RegExp(said.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i") : null;
  hits = new Map();
  if (query) page.texts.forEach((text, index) => { const at = text.search(query); if (at >= 0) hits.set(index, at); });
  shown = query ? page.calls.filter((call) => query.test(call.label) || query.test(call.model)
    || hits.has(call.prompt) || hits.has(call.reply)) : page.calls;
  drawCalls();
  $("found").textContent = query ? `${many(shown.length)} of ${counted(page.calls.length, "call")}` : "";
  $("found").dataset.ms = (performance.now() - began).toFixed(1);
}

function drawEvents() {
  if (!page.events.length) return [h("p", {class: "quiet"}, "No warning, no second try.")];
  return page.events.slice(0, 1000).map((one) => h("p", null, h("span", {class: "quiet"}, time(one.time_ns), " "),
    h("b", null, one.kind), one.where && ` in ${one.where}`, one.said && `: ${one.said}`,
    h("span", {class: "quiet"}, " ", one.figures.map(([name, value]) => `${name} ${value}`).join(", "))));
}

// --- all of it, and news ----------------------------------------------------------------------

function draw() {
  const anchor = [...document.querySelectorAll(".stop, .node")].find((one) => one.getBoundingClientRect().top >= 0);
  const before = anchor?.getBoundingClientRect().top;
  drawHead();
  for (const [name, from, make] of [["graph", page.columns, drawGraph], ["loops", page.loops, drawLoops],
    ["plots", [page.calls, page.models, page.duration_ns], drawPlots], ["events", page.events, drawEvents]]) {
    const signature = JSON.stringify(from);
    if (drawn.get(name) === signature) continue;
    drawn.set(name, signature);
    $(`${name}-body`).replaceChildren(...make());
    $(name).hidden = name === "loops" && !page.loops.length;
  }
  search();
  const again = anchor && $(anchor.id);
  if (again && scrollY > 0) scrollBy(0, again.getBoundingClientRect().top - before);
}

function reveal() {
  const [, id] = location.hash.match(/^#(call-\d+)$/) ?? [];
  if (!id) return;
  const wanted = (call) => `call-${call.id}` === id;
  if (!shown.some(wanted)) { $("search").value = ""; search(); }
  const index = shown.findIndex(wanted);
  if (index < 0) return;
  opened.add(id);
  go(index, true);
}
function go(index, isOpened) {
  fillChunk($("calls-body").children[Math.floor(index / CHUNK)]);
  const row = $(`call-${shown[index].id}`);
  if (isOpened) row.open = true;
  focusOn(row);
}
function focusOn(row) {
  row.firstChild.focus({preventScroll: true});
  row.scrollIntoView({block: "nearest"});
  const {top} = row.getBoundingClientRect();
  if (top < 60 || top > innerHeight - 80) scrollBy(0, top - 90);
}

function step(by) {
  const rounds = [...document.querySelectorAll(".round.stop")], here = document.activeElement?.closest?.(".stop");
  const count = rounds.length + shown.length;
  let at = here ? rounds.indexOf(here) : -1;
  if (here && at < 0) at = rounds.length + shown.findIndex((call) => `call-${call.id}` === here.id);
  const next = here ? at + by : [...rounds, ...document.querySelectorAll(".call.stop")]
    .findIndex((one) => one.getBoundingClientRect().bottom > 60);
  const to = Math.max(0, Math.min(count - 1, next));
  if (to < rounds.length) focusOn(rounds[to]); else if (count) go(to - rounds.length, false);
}

let pause;
$("search").addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(search, 120); });
addEventListener("keydown", (event) => {
  const isTyping = event.target === $("search");
  if (event.key === "Escape") { $("search").value = ""; $("search").blur(); if (query) search(); return; }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
  else if (event.key === "/") { event.preventDefault(); $("search").focus(); $("search").select(); }
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  $("plots-body").replaceChildren(...drawPlots());
});
addEventListener("hashchange", reveal);

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

opened.add(`round-1-${page.loops[0]?.recorded.best_round}`);
draw();
reveal();
if (LIVE) { window.alive = new EventSource("/harness-alive"); setTimeout(news, 2000); }
