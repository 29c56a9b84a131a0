"""The page of ``python -m shardwire.status --web``: one text with style and script. All reports of a job are inserted
as text, never as HTML."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>shardwire status</title><link rel="icon" href="data:,">
<style>
:root { --traffic: 210 80% 45%; --cell-text: #222 }
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff }
h1 { font-size: 1.3em; margin: 0 } h2 { font-size: 1.1em; margin: 1.5em 0 .3em } h3 { font-size: 1em; margin: 1em 0 .3em }
.wide { overflow-x: auto } table { border-collapse: collapse; margin: .4em 0; white-space: nowrap }
td, th { text-align: left; padding: .2em .8em .2em .3em; border-bottom: 1px solid #ddd } th { font-weight: 600; color: #666 }
.culprit td { background: #fff0b8 } .failed td, .dead td, .stopped td, .silent td { background: #ffe3e0 }
.sentence { font-size: 1.05em; margin: .4em 0; overflow-wrap: anywhere } .quiet { color: #777 } .late { color: #b00 }
svg text { font: 11px system-ui, sans-serif; fill: #444 } svg .cell { font-size: 9px; fill: var(--cell-text) } svg .dark { fill: #fff } details { margin: .3em 0 }
@media (max-width: 600px) { body { margin: .8em } }
@media (prefers-color-scheme: dark) { :root { --traffic: 210 80% 60%; --cell-text: #ddd } body { background: #181818; color: #ddd } td, th { border-color: #333 } .culprit td { background: #4d3f0a }
.failed td, .dead td, .stopped td, .silent td { background: #4a1f1b } svg text { fill: #bbb } svg .dark { fill: #000 } }
</style></head><body>
<h1>shardwire status</h1><p class="quiet" id="when">looking...</p><main id="groups"></main>
<script>
"use strict";
const make = (name, words, attributes) => {
  const element = document.createElement(name);
  if (words !== undefined) element.textContent = words;
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  return element;
};
const draw = (name, attributes, words) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (words !== undefined) element.textContent = words;
  return element;
};
const seconds = value => value < 1 ? `${(value * 1e3).toFixed(0)} ms` : value < 10 ? `${value.toFixed(1)} s` : value < 120 ? `${value.toFixed(0)} s` : `${(value / 60).toFixed(0)} min`;
const bytes = value => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; ++unit) value /= 1000;
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
};
const row = (cells, kind) => {
  const line = make("tr", undefined, kind ? {class: kind} : {});
  for (const cell of cells) line.append(make("td", cell));
  return line;
};
const scrolling = element => {
  const box = make("div", undefined, {class: "wide"});
  box.append(element);
  return box;
};
const opened = new Set();
const folded = (key, words, inside) => {
  const part = make("details");
  part.open = opened.has(key);
  part.addEventListener("toggle", () => part.open ? opened.add(key) : opened.delete(key));
  part.append(make("summary", words), scrolling(inside));
  return part;
};
const hasOtherNumbers = group => group.ranks.some(rank => rank.global_rank !== rank.rank);
const ranksOf = group => {
  const table = make("table"), head = make("tr"), both = hasOtherNumbers(group);
  for (const title of ["rank", ...(both ? ["global rank"] : []), "pid", "host", "state", "operation", "since", "waits for", "last"]) head.append(make("th", title));
  table.append(head);
  for (const rank of group.ranks) {
    const now = rank.in_flight[0], last = rank.last;
    const ago = last && last.seconds_ago !== null ? `, ${seconds(last.seconds_ago)} ago` : "";
    table.append(row([rank.rank, ...(both ? [rank.global_rank] : []), rank.pid, rank.host, rank.state === "in" ? "in an operation" : rank.state, now ? `${now.operation}${now.seq ? ` #${now.seq}` : ""}` : rank.failure,
      now ? seconds(now.seconds) : "", now ? now.waits_for.join(", ") : "", last ? `${last.operation}${last.seq ? ` #${last.seq}` : ""}${ago}` : ""],
      `${rank.state}${group.culprits.includes(rank.rank) ? " culprit" : ""}`));
  }
  return scrolling(table);
};
const transportsOf = group => {
  const table = make("table");
  for (const rank of group.ranks) {
    for (const [peer, text] of Object.entries(rank.transports)) table.append(row([`rank ${rank.rank} to ${peer}`, text]));
  }
  return folded(`${group.id} transports`, "transports", table);
};
const shade = (count, most) => count ? .12 + .88 * Math.log1p(count) / Math.log1p(most) : .04;
const square = (picture, place, size, opacity, words, text) => {
  const box = draw("rect", {...place, width: size - 2, height: size - 2, style: `fill: ${opacity === undefined ? "#8882" : `hsl(var(--traffic) / ${opacity})`}`});
  box.append(draw("title", {}, words));
  picture.append(box);
  if (text && size >= 40) picture.append(draw("text", {x: place.x + size / 2 - 1, y: place.y + size / 2 + 2, "text-anchor": "middle", class: opacity > .6 ? "cell dark" : "cell"}, text));
};
const trafficOf = group => {
  const size = group.world_size, cell = Math.max(6, Math.min(48, 640 / size)), most = Math.max(1, ...group.traffic.flat()), below = 34 + size * cell;
  const picture = draw("svg", {width: Math.max(size * cell + 90, 330), height: below + 44, role: "img", "aria-label": "bytes from each rank to each"});
  picture.append(draw("text", {x: 60, y: 12}, "to rank"), draw("text", {x: 0, y: 34}, "from rank"));
  group.traffic.forEach((sent, from) => {
    if (cell >= 14) picture.append(draw("text", {x: 50, y: 32 + from * cell + cell / 2, "text-anchor": "end"}, from), draw("text", {x: 59 + from * cell + cell / 2, y: 24, "text-anchor": "middle"}, from));
    sent.forEach((count, to) => square(picture, {x: 60 + to * cell, y: 28 + from * cell}, cell, from === to ? undefined : shade(count, most), `rank ${from} to rank ${to}: ${bytes(count)}`, from === to ? "" : bytes(count)));
  });
  for (let step = 0; step <= 4; ++step) {
    const count = step === 4 ? most : step ? Math.round(Math.expm1(step / 4 * Math.log1p(most))) : 0;
    square(picture, {x: 60 + step * 54, y: below}, 20, shade(count, most), bytes(count));
    picture.append(draw("text", {x: 60 + step * 54, y: below + 34}, bytes(count)));
  }
  return scrolling(picture);
};
const latestOf = (group, rank) => {
  const table = make("table");
  for (const one of [...rank.latest].reverse()) {
    table.append(row([one.seq ? `#${one.seq}` : "", one.operation, `called ${seconds(one.called_s_ago)} ago`, one.seconds === null ? "in flight" : `took ${seconds(one.seconds)}`, one.result && one.result !== "ok" ? one.result : ""]));
  }
  return folded(`${group.id} ${rank.rank}`, `rank ${rank.rank}: the last ${rank.latest.length} operations`, table);
};
const show = picture => {
  const parts = picture.groups.map(group => {
    const section = make("section");
    section.append(make("h2", `group ${group.name ? `"${group.name}"` : "without a name"} of ${group.world_size} ranks${hasOtherNumbers(group) ? ` (global ranks ${group.global_ranks.join(", ")})` : ""}, made ${seconds(group.age_s)} ago`));
    for (const sentence of group.sentences) section.append(make("p", sentence, {class: "sentence"}));
    section.append(ranksOf(group), transportsOf(group), make("h3", `traffic so far: ${bytes(group.traffic.flat().reduce((sum, count) => sum + count, 0))}`),
      make("p", "What each rank sent to each, in operations that are over. The scale of the colours is logarithmic.", {class: "quiet"}), trafficOf(group));
    for (const rank of group.ranks) if (rank.latest.length) section.append(latestOf(group, rank));
    return section;
  });
  if (!parts.length) parts.push(make("p", "no process of this user reports a group here"));
  const boxes = () => [...document.querySelectorAll(".wide")], places = boxes().map(box => box.scrollLeft);
  document.getElementById("groups").replaceChildren(...parts);
  boxes().forEach((box, i) => { box.scrollLeft = places[i] || 0; });
};
const look = async () => {
  const when = document.getElementById("when");
  try {
    const answer = await fetch("status.json", {cache: "no-store"});
    show(await answer.json());
    when.textContent = `at ${new Date().toLocaleTimeString()}`;
    when.className = "quiet";
  } catch (error) {
    when.textContent = `no answer from python -m shardwire.status (${error}); what follows is old`;
    when.className = "late";
  }
  setTimeout(look, 1000);
};
look();
</script></body></html>
"""
