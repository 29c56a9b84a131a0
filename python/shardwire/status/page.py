"""The page of ``python -m shardwire.status --web``: one text with its style and script. Everything that a job says is put in as text, never as HTML."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>shardwire</title><link rel="icon" href="data:,">
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff }
h2 { font-size: 1.1em; margin: 1.5em 0 .3em } table { border-collapse: collapse; margin: .4em 0 }
td, th { text-align: left; padding: .2em .8em .2em 0; border-bottom: 1px solid #ddd; vertical-align: top } th { font-weight: 600; color: #666 }
.in td { background: #fff7df } .failed td, .dead td, .stopped td, .silent td { background: #ffe3e0 }
.sentence { font-size: 1.05em; margin: .4em 0 } .quiet { color: #777 } .late { color: #b00 }
svg text { font: 11px system-ui, sans-serif; fill: #444 } details { margin: .3em 0 }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } td, th { border-color: #333 } .in td { background: #3a3213 }
.failed td, .dead td, .stopped td, .silent td { background: #4a1f1b } svg text { fill: #bbb } }
</style></head><body>
<p class="quiet" id="when">looking...</p><main id="groups"></main>
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
const ranksOf = group => {
  const table = make("table"), head = make("tr");
  for (const title of ["rank", "pid", "host", "state", "operation", "since", "waits for", "last", "transports"]) head.append(make("th", title));
  table.append(head);
  for (const rank of group.ranks) {
    const now = rank.in_flight[0], last = rank.last;
    const ago = last && last.seconds_ago !== null ? `, ${seconds(last.seconds_ago)} ago` : "";
    const links = Object.entries(rank.transports).map(([peer, text]) => `${peer}: ${text.split(" (")[0]}`).join("; ");
    table.append(row([rank.rank, rank.pid, rank.host, rank.state === "in" ? "in an operation" : rank.state, now ? `${now.operation}${now.seq ? ` #${now.seq}` : ""}` : rank.failure,
      now ? seconds(now.seconds) : "", now ? now.waits_for.join(", ") : "", last ? `${last.operation}${last.seq ? ` #${last.seq}` : ""}${ago}` : "", links], rank.state));
  }
  return table;
};
const trafficOf = group => {
  const size = group.world_size, cell = Math.max(6, Math.min(44, 640 / size)), most = Math.max(1, ...group.traffic.flat());
  const picture = draw("svg", {width: size * cell + 90, height: size * cell + 40, role: "img", "aria-label": "bytes from each rank to each"});
  picture.append(draw("text", {x: 60, y: 12}, "to rank"), draw("text", {x: 0, y: 34}, "from rank"));
  group.traffic.forEach((sent, from) => {
    if (cell >= 14) picture.append(draw("text", {x: 40, y: 30 + from * cell + cell / 2, "text-anchor": "end"}, from), draw("text", {x: 60 + from * cell + cell / 2, y: 24, "text-anchor": "middle"}, from));
    sent.forEach((count, to) => {
      const place = {x: 60 + to * cell, y: 28 + from * cell};
      const square = draw("rect", {...place, width: cell - 2, height: cell - 2, fill: from === to ? "#8882" : `hsl(210 80% 45% / ${count ? .12 + .88 * Math.log1p(count) / Math.log1p(most) : 0.04})`});
      square.append(draw("title", {}, `rank ${from} to rank ${to}: ${bytes(count)}`));
      picture.append(square);
    });
  });
  return picture;
};
const opened = new Set();
const latestOf = (group, rank) => {
  const key = `${group.id} ${rank.rank}`, part = make("details");
  part.open = opened.has(key);
  part.addEventListener("toggle", () => part.open ? opened.add(key) : opened.delete(key));
  part.append(make("summary", `rank ${rank.rank}: the last ${rank.latest.length} operations`));
  const table = make("table");
  for (const one of [...rank.latest].reverse()) {
    table.append(row([one.seq ? `#${one.seq}` : "", one.operation, `called ${seconds(one.called_s_ago)} ago`, one.seconds === null ? "in flight" : `took ${seconds(one.seconds)}`, one.result && one.result !== "ok" ? one.result : ""]));
  }
  part.append(table);
  return part;
};
const show = picture => {
  const parts = picture.groups.map(group => {
    const section = make("section");
    section.append(make("h2", `group ${group.name ? `"${group.name}"` : "without a name"} of ${group.world_size} ranks, made ${seconds(group.age_s)} ago`));
    for (const sentence of group.sentences) section.append(make("p", sentence, {class: "sentence"}));
    section.append(ranksOf(group), make("h2", `traffic so far: ${bytes(group.traffic.flat().reduce((sum, count) => sum + count, 0))}`), trafficOf(group));
    for (const rank of group.ranks) if (rank.latest.length) section.append(latestOf(group, rank));
    return section;
  });
  if (!parts.length) parts.push(make("p", "no process of this user tells of a group here"));
  document.getElementById("groups").replaceChildren(...parts);
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
