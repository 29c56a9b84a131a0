// The script draws on a canvas. Long silences are drawn short: placeOf() gives each time a place, in which a gap
// between two events counts up to a limit, and beyond the limit by its logarithm. draw() shows the events up to the
// time of the slider, and the last lines of the trace.
#include "tests/simulate/page_script.h"

namespace shardwire::simulate {

const char* const kPageHead = R"html(<style>
body { font: 14px sans-serif; margin: 12px; }
canvas { border: 1px solid #999; width: 100%; display: block; }
pre { background: #f4f4f4; padding: 6px; white-space: pre-wrap; margin: 6px 0; }
.key { display: inline-block; width: 1em; height: 1em; margin: 0 4px 0 12px; vertical-align: -2px; }
#at { width: 60%; }
</style></head>
<body>
<h3 id="title"></h3>
<p><button id="play">play</button>
<button id="back">&lt;</button> <input id="at" type="range" min="0" max="0" value="0"> <button id="next">&gt;</button>
<b id="time"></b></p>
<p>zoom <input id="zoom" type="range" min="0" max="100" value="0">
speed <input id="speed" type="range" min="1" max="100" value="20">
<span class="key" style="background:#8bc48a"></span>done
<span class="key" style="background:#e07b7b"></span>failed
<span class="key" style="background:#b9c7e4"></span>under way
<span class="key" style="background:#ccc"></span>stopped
<span class="key" style="background:#f5d98b"></span>held
<span class="key" style="background:#222"></span>dead
<span class="key" style="background:#c0f"></span>cut, revoked</p>
<canvas id="canvas"></canvas>
<pre id="under">Move the pointer over a bar, a frame or a fault.</pre>
<pre id="lines"></pre>
<pre id="wrong"></pre>
<pre id="summary"></pre>
<pre id="schedule"></pre>
)html";

const char* const kPageScript = R"js(
const element = id => document.getElementById(id);
const canvas = element("canvas"), slider = element("at"), zoom = element("zoom");
const kLimit = 50000, kLeft = 90, kBar = 14;
const kColours = {"done": "#8bc48a", "failed": "#e07b7b", "under way": "#b9c7e4"};
const kBands = {stop: "#ccc", hold: "#f5d98b"};
data.lines.sort((a, b) => a[0] - b[0]);
const endOf = thing => thing.end === null ? data.end : thing.end;

// The times of all events, each once, and their places.
const times = [...new Set([0, data.end].concat(
  data.lines.map(line => line[0]), data.bars.flatMap(bar => [bar.begin, endOf(bar)]),
  data.frames.flatMap(frame => frame.arrives === null ? [frame.sent] : [frame.sent, frame.arrives]),
  data.marks.flatMap(mark => [mark.begin, endOf(mark)])))].filter(time => time <= data.end).sort((a, b) => a - b);
const places = [0];
for (let i = 1; i < times.length; i++) {
  const gap = times[i] - times[i - 1];
  places.push(places[i - 1] + (gap <= kLimit ? gap : kLimit * (1 + Math.log(gap / kLimit))));
}
// The last index with values[index] <= value.
function indexOf(values, value) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= value) low = middle; else high = middle - 1;
  }
  return low;
}
function placeOf(time) {
  const i = indexOf(times, time);
  if (i + 1 >= times.length) return places[i];
  return places[i] + (time - times[i]) / (times[i + 1] - times[i]) * (places[i + 1] - places[i]);
}
const milliseconds = time => (time / 1e6).toFixed(6) + " ms";

// Operations of a group that are in flight together lie in several tracks.
const numTracks = new Array(data.groups).fill(1), busy = new Map();
for (const bar of data.bars) {
  const key = bar.row * data.groups + bar.group, ends = busy.get(key) || [];
  busy.set(key, ends);
  bar.track = ends.findIndex(end => end <= bar.begin);
  if (bar.track < 0) bar.track = ends.length;
  ends[bar.track] = endOf(bar);
  numTracks[bar.group] = Math.max(numTracks[bar.group], ends.length);
}
const firstTrack = numTracks.map((_, group) => numTracks.slice(0, group).reduce((a, b) => a + b, 0));
const allTracks = numTracks.reduce((a, b) => a + b, 0), rowHeight = allTracks * kBar + 34;
const yOf = row => 10 + row * rowHeight + rowHeight / 2;

let hits = [];  // what the pointer may be over: {x0, x1, y0, y1, text} or {line: [x0, y0, x1, y1], text}
function draw() {
  const now = times[+slider.value], pen = canvas.getContext("2d"), last = places[places.length - 1] || 1;
  const width = canvas.clientWidth || 1000;
  canvas.width = width;
  canvas.height = 20 + data.rows * rowHeight;
  const shown = last / Math.pow(2, zoom.value / 8), place = placeOf(now);
  const first = Math.max(0, Math.min(last - shown, place - shown * 0.7));
  const xOf = time => kLeft + (placeOf(time) - first) / shown * (width - kLeft - 10);
  const isShown = (begin, end) => xOf(end) >= kLeft && xOf(begin) <= width;
  hits = [];
  pen.font = "12px sans-serif";
  const band = (begin, end, y, height, colour, text) => {
    if (!isShown(begin, end)) return;
    const x0 = Math.max(kLeft, xOf(begin)), x1 = Math.max(x0 + 2, xOf(end));
    pen.fillStyle = colour;
    pen.fillRect(x0, y, x1 - x0, height);
    hits.push({x0, x1, y0: y, y1: y + height, text});
  };
  const line = (x0, y0, x1, y1, colour, text) => {
    pen.strokeStyle = colour;
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
    hits.push({line: [x0, y0, x1, y1], text});
  };
  for (let row = 0; row < data.rows; row++) {
    pen.fillStyle = "#000";
    pen.fillText(data.rowName + " " + row, 6, yOf(row) + 4);
    line(kLeft, yOf(row), width, yOf(row), "#ddd", "");
  }
  drawFaults(now, band, line, xOf, isShown);
  for (const bar of data.bars) {
    if (bar.begin > now) continue;
    const isOver = endOf(bar) <= now;
    const y = yOf(bar.row) + (firstTrack[bar.group] + bar.track - allTracks / 2) * kBar + 1;
    const outcome = isOver ? bar.outcome : "under way", end = Math.min(endOf(bar), now);
    band(bar.begin, end, y, kBar - 2, kColours[outcome], (isOver ? bar.outcome + ": " : "") + bar.text);
    if (isShown(bar.begin, end)) {
      pen.fillStyle = "#000";
      pen.fillText(bar.number, Math.max(kLeft, xOf(bar.begin)) + 2, y + 11);
    }
  }
  for (const frame of data.frames) {
    if (frame.sent > now || !isShown(frame.sent, frame.arrives === null ? frame.sent : frame.arrives)) continue;
    drawFrame(frame, now, line, xOf);
  }
  line(xOf(now), 0, xOf(now), canvas.height, "#06c", "");
  element("time").textContent = milliseconds(now);
  const until = data.lines.filter(each => each[0] <= now).slice(-14);
  element("lines").textContent = until.map(each =>
    milliseconds(each[0]).padStart(20) + "  " + (each[1] < 0 ? "" : data.rowName + " " + each[1] + "  ") + each[2]
  ).join("\n");
}
// A frame under way ends between the rows, at the time of the slider; a lost frame ends half-way.
function drawFrame(frame, now, line, xOf) {
  const y0 = yOf(frame.from), y1 = yOf(frame.to), text = frame.text;
  if (frame.arrives === null) {
    line(xOf(frame.sent), y0, xOf(frame.sent) + 8, (y0 + y1) / 2, "#d00", text + " (lost)");
    return;
  }
  const part = frame.arrives <= now ? 1 : (now - frame.sent) / (frame.arrives - frame.sent);
  const x0 = xOf(frame.sent), x1 = xOf(frame.arrives);
  line(x0, y0, x0 + part * (x1 - x0), y0 + part * (y1 - y0), part < 1 ? "#06c" : "#9aa", text);
}
function drawFaults(now, band, line, xOf, isShown) {
  for (const mark of data.marks) {
    if (mark.begin > now) continue;
    const y = yOf(mark.row), end = Math.min(endOf(mark), now), half = rowHeight / 2 - 2;
    if (mark.kind === "stop") {
      band(mark.begin, end, y - half, 2 * half, kBands.stop, mark.text);
    } else if (mark.kind === "hold" || mark.kind === "cut") {
      const colour = mark.kind === "hold" ? kBands.hold : "#c0f";
      band(mark.begin, end, y - half, 4, colour, mark.text);
      band(mark.begin, end, yOf(mark.peer) - half, 4, colour, mark.text);
      if (isShown(mark.begin, mark.begin)) line(xOf(mark.begin), y, xOf(mark.begin), yOf(mark.peer), colour, mark.text);
    } else if (mark.kind === "revoke") {
      band(mark.begin, mark.begin, y - half, 2 * half, "#c0f", mark.text);
    } else {
      band(mark.begin, now, y - 3, 6, "#222", mark.text);
    }
  }
}
canvas.addEventListener("mousemove", event => {
  const x = event.offsetX, y = event.offsetY;
  const found = hits.filter(hit => hit.text && (hit.line ? distance(x, y, hit.line) < 3 :
    x >= hit.x0 && x <= hit.x1 && y >= hit.y0 && y <= hit.y1));
  if (found.length > 0) element("under").textContent = found.slice(-8).map(hit => hit.text).join("\n");
});
function distance(x, y, [x0, y0, x1, y1]) {
  const dx = x1 - x0, dy = y1 - y0, length = dx * dx + dy * dy || 1;
  const part = Math.max(0, Math.min(1, ((x - x0) * dx + (y - y0) * dy) / length));
  return Math.hypot(x - x0 - part * dx, y - y0 - part * dy);
}
let timer = null;
function step(by) {
  slider.value = Math.max(0, Math.min(times.length - 1, +slider.value + by));
  draw();
}
function play() {
  if (timer !== null) {
    clearInterval(timer);
    timer = null;
  } else {
    if (+slider.value >= times.length - 1) slider.value = 0;
    timer = setInterval(() => {
      step(Math.ceil(element("speed").value / 10));
      if (+slider.value >= times.length - 1) play();
    }, 1000 / element("speed").value);
  }
  element("play").textContent = timer === null ? "play" : "pause";
}
element("play").addEventListener("click", play);
element("back").addEventListener("click", () => step(-1));
element("next").addEventListener("click", () => step(1));
for (const each of [slider, zoom]) each.addEventListener("input", draw);
window.addEventListener("resize", draw);
element("title").textContent = "seed " + data.seed + ": " + (data.wrong.length > 0 ? "FAILS" : "keeps the promises");
element("wrong").textContent = data.wrong.join("\n");
element("wrong").hidden = data.wrong.length === 0;
element("summary").textContent = data.summary;
element("schedule").textContent = data.schedule;
slider.max = times.length - 1;
slider.value = slider.max;
draw();
)js";

}  // namespace shardwire::simulate
