"use strict";
// What the pages of a run and of an evaluation share: elements, figures in words, the search. A text
// only ever becomes a text node, so nothing that a model wrote can run here.

const $ = (id) => document.getElementById(id);
const LIVE = document.body.dataset.live === "yes";
// Held open for as long as this page is: the server stops soon after the last page has gone.
if (LIVE) window.alive = new EventSource("/harness-alive");

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value || value === 0) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((one) => one || one === 0));
  return element;
}
const h = (tag, props, ...children) => filled(document.createElement(tag), props, children);
const SVG = "http://www.w3.org/2000/svg";
const s = (tag, props, ...children) => filled(document.createElementNS(SVG, tag), props, children);
const quiet = (...said) => h("span", {class: "quiet"}, said);
const note = (...said) => h("p", {class: "quiet"}, said);

const many = (count) => (count ?? null) === null ? "–" : count.toLocaleString("en");
const counted = (count, what) => `${many(count)} ${what}${count === 1 ? "" : "s"}`;
const usd = (cost) => (cost ?? null) === null ? "–"
  : "$" + (cost >= 1 ? cost.toFixed(2) : cost.toPrecision(3));
function time(ns) {
  if ((ns ?? null) === null) return "–";
  const sec = ns / 1e9;
  if (sec < 0.9995) return `${(ns / 1e6).toFixed(sec < 0.00995 ? 1 : 0)} ms`;
  if (sec < 99.5) return `${sec.toFixed(sec < 9.995 ? 2 : 1)} s`;
  const minutes = Math.round(sec / 60);
  return sec < 5940 ? `${Math.floor(sec / 60)} min ${Math.floor(sec % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function searchable(search) {
  const box = $("search");
  let pause;
  box.addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(search, 120); });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") { box.value = ""; box.blur(); search(); }
    if (event.target === box || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); box.focus(); box.select(); }
  });
}
