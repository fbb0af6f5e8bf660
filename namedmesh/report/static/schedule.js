/* What a device runs and waits for, drawn on one canvas: a lane of ops, and one for each set of axes.

A row is [start, seconds, exposed, times, parent, lane, name, op, line]; a loop's rows are those of one
iteration, drawn as often as the window shows. */

const ROW = { start: 0, seconds: 1, exposed: 2, times: 3, parent: 4, lane: 5, name: 6, op: 7, line: 8 };
const SCHEDULE = { lane: 30, top: 22, gap: 16, most: 60000 };
const LANE_ORDER = ["compute", "beside", "copies"];

class Schedule {
  constructor(data) {
    Object.assign(this, data);
    this.children = new Map();
    this.rows.forEach((row, i) => {
      if (!this.children.has(row[ROW.parent])) this.children.set(row[ROW.parent], []);
      this.children.get(row[ROW.parent]).push(i);
    });
    const used = new Set(this.rows.map((row) => this.texts[row[ROW.lane]]).filter((lane) => lane !== "loop"));
    const others = [...used].filter((lane) => !LANE_ORDER.includes(lane)).sort();
    this.lanes = [...LANE_ORDER.filter((lane) => used.has(lane)), ...others];
    this.words = this.rows.map((row) => [ROW.name, ROW.op, ROW.line, ROW.lane].map((i) => this.texts[row[i]]).join(" ").toLowerCase());
  }

  /* Visit what a window of time shows: rows that are wide enough, and loops that are not as one. */
  visit(from, to, least, draw, parent = -1, origin = 0) {
    for (const i of this.children.get(parent) || []) {
      const row = this.rows[i];
      const loop = this.texts[row[ROW.lane]] === "loop";
      const start = origin + row[ROW.start];
      const span = row[ROW.seconds] * (loop ? row[ROW.times] : 1);
      if (start > to || start + span < from) continue;
      if (!loop) draw(i, start, span);
      else if (row[ROW.seconds] < least) draw(i, start, span);
      else {
        const first = Math.max(0, Math.floor((from - start) / row[ROW.seconds]));
        const last = Math.min(row[ROW.times] - 1, Math.floor((to - start) / row[ROW.seconds]));
        for (let turn = first; turn <= last; turn += 1) this.visit(from, to, least, draw, i, start + turn * row[ROW.seconds]);
      }
    }
  }

  describe(i) {
    const row = this.rows[i];
    const text = (column) => this.texts[row[column]];
    if (text(ROW.lane) === "loop") return `loop ${text(ROW.op)}: ${row[ROW.times]} iterations of ${formatSeconds(row[ROW.seconds])}`;
    const waits = row[ROW.exposed] > 0 ? `, of which the device waits ${formatSeconds(row[ROW.exposed])}` : "";
    return [`${text(ROW.name)}: ${formatSeconds(row[ROW.seconds])}${waits}`, text(ROW.lane), text(ROW.op), text(ROW.line)].filter(Boolean).join(" · ");
  }
}

/* Put the drawing, its buttons and its search into an element. */
function showSchedule(element, data) {
  const schedule = new Schedule(data);
  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const canvas = make("canvas", { className: "schedule", tabIndex: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `timeline of ${formatSeconds(data.seconds)}: ${formatSeconds(data.compute)} of ops, ${formatSeconds(data.exposed)} of waits for collectives`);
  const readout = make("p", { className: "readout" }, "Drag to move; scroll, pinch or press + and − to zoom; point at a bar to see what it is.");
  readout.setAttribute("aria-live", "polite");
  const found = make("span", { className: "faint" });
  const query = make("input", { type: "search", placeholder: "Find ops, tensors, lines, axes" });
  query.setAttribute("aria-label", "Find in the timeline");
  const button = (text, label, action) => {
    const made = make("button", { type: "button", className: "more", onclick: action }, text);
    made.setAttribute("aria-label", label);
    return made;
  };
  const view = { from: 0, to: data.seconds, query: "", hovered: -1, shown: [] };
  const width = () => Math.max(1, canvas.clientWidth);
  const height = SCHEDULE.top + schedule.lanes.length * (SCHEDULE.lane + SCHEDULE.gap) + 24;
  const scale = () => width() / (view.to - view.from);
  const colour = (name) => getComputedStyle(canvas).getPropertyValue(name).trim();
  let asked = 0;

  function draw() {
    asked = 0;
    const ratio = devicePixelRatio || 1;
    canvas.width = width() * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    const faint = colour("--faint");
    const fills = schedule.lanes.map((lane, i) => (LANE_ORDER.includes(lane) ? colour("--compute") : colour(`--axis-${i % 8}`)));
    const bad = colour("--bad");
    pen.fillStyle = faint;
    schedule.lanes.forEach((lane, i) => pen.fillText(lane === "compute" ? "ops" : lane, 4, SCHEDULE.top + i * (SCHEDULE.lane + SCHEDULE.gap) + 11));
    view.shown = [];
    const ends = schedule.lanes.map(() => -1); // pixels that are drawn: thin neighbours are one
    let count = 0;
    schedule.visit(view.from, view.to, 2 / scale(), (i, start, span) => {
      const row = schedule.rows[i];
      const loop = schedule.texts[row[ROW.lane]] === "loop";
      const lane = loop ? 0 : schedule.lanes.indexOf(schedule.texts[row[ROW.lane]]);
      const left = Math.max(-1, (start - view.from) * scale());
      const right = Math.min(width() + 1, (start + span - view.from) * scale());
      const match = view.query && schedule.words[i].includes(view.query);
      if ((right - ends[lane] < 0.5 && !match) || count > SCHEDULE.most) return;
      count += 1;
      ends[lane] = right;
      const top = SCHEDULE.top + lane * (SCHEDULE.lane + SCHEDULE.gap) + SCHEDULE.gap;
      const wide = Math.max(0.75, right - left - (right - left > 3 ? 0.75 : 0));
      pen.globalAlpha = view.query && !match ? 0.2 : loop ? 0.5 : 1;
      pen.fillStyle = fills[lane];
      pen.fillRect(left, top, wide, SCHEDULE.lane);
      if (row[ROW.exposed] > 0) { // its end is what the device waits for
        const waits = Math.min(wide, row[ROW.exposed] * scale());
        pen.fillStyle = bad;
        pen.fillRect(right - waits, top + SCHEDULE.lane - 6, waits, 6);
      }
      pen.globalAlpha = 1;
      if (i === view.hovered) pen.strokeRect(left, top, wide, SCHEDULE.lane);
      view.shown.push([left, left + wide, lane, i]);
    });
    pen.fillStyle = faint;
    const bottom = height - 8;
    for (const value of ticks(view.to - view.from, Math.max(2, Math.floor(width() / 110)))) {
      pen.fillRect(value * scale(), 0, 1, 5);
      pen.fillText(formatSeconds(view.from + value), Math.min(value * scale() + 2, width() - 60), bottom);
    }
  }
  const ask = () => { asked = asked || requestAnimationFrame(draw); };

  function zoom(factor, at = width() / 2) {
    const middle = view.from + at / scale();
    const span = Math.min(data.seconds, Math.max(data.seconds / 1e6, (view.to - view.from) * factor));
    move(middle - (at / width()) * span, span);
  }
  function move(from, span) {
    view.from = Math.max(0, Math.min(from, data.seconds - span));
    view.to = view.from + span;
    ask();
  }
  function hover(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = Math.floor((y - SCHEDULE.top) / (SCHEDULE.lane + SCHEDULE.gap));
    const hit = view.shown.find((one) => one[2] === lane && one[0] - 1 <= x && x <= one[1] + 1);
    view.hovered = hit ? hit[3] : -1;
    if (hit) readout.textContent = schedule.describe(hit[3]);
    ask();
  }

  const touches = new Map();
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, event.clientX - canvas.getBoundingClientRect().left);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    touches.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
    hover(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!touches.has(event.pointerId)) { hover(event); return; }
    const before = [...touches.values()];
    touches.set(event.pointerId, event.clientX);
    const after = [...touches.values()];
    if (after.length > 1) {
      const spread = (ends) => Math.max(8, Math.abs(ends[0] - ends[1]));
      zoom(spread(before) / spread(after), (after[0] + after[1]) / 2 - canvas.getBoundingClientRect().left);
    } else move(view.from - (after[0] - before[0]) / scale(), view.to - view.from);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => touches.delete(event.pointerId));
  canvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const actions = { "+": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(view.from - span / 4, span), ArrowRight: () => move(view.from + span / 4, span), 0: () => move(0, data.seconds) };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });
  query.addEventListener("input", () => {
    view.query = query.value.trim().toLowerCase();
    const count = view.query ? schedule.words.filter((words) => words.includes(view.query)).length : 0;
    found.textContent = view.query ? `${formatNumber(count)} found` : "";
    ask();
  });
  const tools = make("div", { className: "tools" }, query, found,
    button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("all", "Show all of the step", () => move(0, data.seconds)));
  const share = data.seconds ? formatShare(data.exposed, data.seconds) : "0%";
  const total = make("p", { className: "lead" }, `${formatSeconds(data.seconds)} a step on ${data.target}: ${formatSeconds(data.compute)} of ops; ${formatSeconds(data.exposed)} (${share}, red) waits for collectives.`);
  const head = make("tr", {}, ...["exposed", "collective", "axes", "line"].map((text) => make("th", { scope: "col" }, text)));
  const body = data.most.map((row) => make("tr", {}, ...row.map((text, i) => make("td", { className: i ? "" : "number" }, i ? text : formatSeconds(text)))));
  const table = make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  element.replaceChildren(total, tools, canvas, readout, ...(body.length ? [table] : []));
  new ResizeObserver(ask).observe(canvas);
  draw();
}
