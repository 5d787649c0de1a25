/* The panel below: memory over time, the timeline of a profile, and tables of layers and of steps. */

const EDGE = { left: 68, right: 12, top: 8, bottom: 22 };

function roleOf(model, id) {
  return model.nodes.get(id)?.role ?? "forward";
}

/** Return the bytes of the arena in use at each step; a buffer and its successor share memory. */
function bytesInUse(model) {
  const use = new Float64Array(model.steps.length + 1);
  for (const buffer of arenaOf(model)) {
    const end = buffer.successor ? buffer.last - 1 : buffer.last;
    for (let t = buffer.first; t <= Math.min(end, model.steps.length - 1); t++) use[t] += buffer.bytes;
  }
  return use;
}

function arenaOf(model) {
  model.arena ??= model.buffers.filter((b) => b.space === "arena" && b.bytes);
  return model.arena;
}

/** Return the memory plan as SVG: x is the step, y the offset in the arena. */
function memoryChart(model, width, height) {
  const { arena_bytes: arena } = model.data.memory;
  const buffers = arenaOf(model);
  const last = Math.max(1, model.steps.length);
  const x = (t) => EDGE.left + ((width - EDGE.left - EDGE.right) * t) / last;
  const y = (at) => height - EDGE.bottom - ((height - EDGE.top - EDGE.bottom) * at) / arena;
  const use = bytesInUse(model);
  const [, peak] = peakOf(model);
  const rects = buffers.map((b) => {
    const [top, bottom] = [y(b.offset + b.bytes), y(b.offset)];
    const [from, to] = [x(b.first), x(Math.min(b.last + 1, last))];
    const atPeak = b.first <= peak && peak <= (b.successor ? b.last - 1 : b.last) ? "at-peak" : "";
    return `<rect class="buffer ${roleOf(model, b.node)} ${atPeak}" data-buffer="${b.id}" x="${from.toFixed(1)}" y="${top.toFixed(1)}" width="${Math.max(1, to - from).toFixed(1)}" height="${Math.max(0.8, bottom - top).toFixed(1)}"><title>${escape(model.contentsOf(b))}: ${bytes(b.bytes)}, steps ${b.first} to ${b.last}</title></rect>`;
  });
  const curvePoints = Array.from(use.slice(0, last), (n, t) => `${x(t).toFixed(1)},${y(n).toFixed(1)}L${x(t + 1).toFixed(1)},${y(n).toFixed(1)}`);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => `<text class="axis" x="${EDGE.left - 6}" y="${y(part * arena) + 4}" text-anchor="end">${bytes(Math.round(part * arena))}</text>`);
  const name = `Memory of the arena at each step: ${bytes(use[peak])} of ${bytes(arena)} at the peak`;
  return (
    `<svg class="chart" role="img" aria-label="${name}" width="${width}" height="${height}">${rects.join("")}` +
    `<path class="use" d="M${curvePoints.join("L")}"/>` +
    `<rect class="peak" x="${x(peak)}" y="${EDGE.top}" width="${Math.max(2, x(peak + 1) - x(peak))}" height="${height - EDGE.top - EDGE.bottom}"/>` +
    `${marks.join("")}<text class="axis" x="${EDGE.left}" y="${height - 6}">step 0</text><text class="axis" x="${width - EDGE.right}" y="${height - 6}" text-anchor="end">step ${last}</text></svg>`
  );
}

/** Return the peak use of the arena in bytes, and its step. */
function peakOf(model) {
  const use = bytesInUse(model);
  const most = use.reduce((a, b) => Math.max(a, b), 0);
  return [most, use.indexOf(most)];
}

/** Return a description of the memory use at the peak, as HTML. */
function peakLabel(model) {
  const [most, peak] = peakOf(model);
  const { arena_bytes: arena, unplanned_bytes: unplanned } = model.data.memory;
  return `<p class="peak-label">peak: ${bytes(most)} in use at step ${peak}, ${escape(model.label(model.steps[peak].node))}; arena ${bytes(arena)}, without reuse ${bytes(unplanned)}</p>`;
}

/** Return the largest buffers at the peak as HTML. */
function peakList(model) {
  const [, peak] = peakOf(model);
  const alive = arenaOf(model).filter((b) => b.first <= peak && peak <= (b.successor ? b.last - 1 : b.last));
  alive.sort((a, b) => b.bytes - a.bytes);
  const items = alive.slice(0, 12).map((b) => `<button class="link" data-buffer="${b.id}">${bytes(b.bytes)}: ${escape(model.contentsOf(b))}</button>`);
  return `<div class="peak-list"><h3>at the peak, step ${peak}</h3><p class="links">${items.join("")}</p></div>`;
}

/** Return the timeline of the profiled call as SVG: kernels, and above them their layers. */
function timelineChart(model, width, height, zoom) {
  const { runs } = model.data;
  if (!runs.length) {
    return '<p class="hint">No call was profiled. Call <code>step.profile(...)</code> before <code>step.to_html(path)</code>.</p>';
  }
  const end = Math.max(...runs.map((run) => run.start + run.seconds));
  const full = (width - EDGE.left - EDGE.right) * zoom;
  const x = (t) => EDGE.left + (full * t) / end;
  const bars = runs.map((run) => {
    const step = model.steps[run.step];
    return `<rect class="run ${roleOf(model, step.node)}" data-step="${run.step}" x="${x(run.start).toFixed(2)}" y="62" width="${Math.max(0.6, x(run.start + run.seconds) - x(run.start)).toFixed(2)}" height="${height - 62 - EDGE.bottom}"><title>${escape(model.label(step.node))}: ${time(run.seconds)}, ${escape(step.kernel)}</title></rect>`;
  });
  const tracks = [];
  for (const run of runs) {
    const { layer, role } = model.nodes.get(model.steps[run.step].node) ?? { layer: "", role: "forward" };
    const name = layer.split(".")[0];
    const before = tracks.at(-1);
    if (before && (role === "update" || (before.name === name && before.role === role))) before.end = run.start + run.seconds;
    else tracks.push({ name, role, start: run.start, end: run.start + run.seconds });
  }
  const layers = tracks.map(({ name, role, start, end: until }) => {
    const size = x(until) - x(start);
    const text = size > 7 * name.length + 4 ? `<text class="on-bar" x="${x(start) + 4}" y="47">${escape(name)}</text>` : "";
    return `<rect class="track ${role}" x="${x(start).toFixed(2)}" y="32" width="${Math.max(0.4, size - 0.5).toFixed(2)}" height="22"><title>${escape(name || "no layer")}, ${role}: ${time(until - start)}</title></rect>${text}`;
  });
  const count = Math.max(2, Math.min(10, Math.floor(full / 90)));
  const ticks = Array.from({ length: count + 1 }, (_, i) => `<text class="axis" x="${x((end * i) / count)}" y="${height - 6}" text-anchor="${i < count ? "middle" : "end"}">${time((end * i) / count)}</text>`);
  return `<svg class="chart" role="img" aria-label="Timeline of ${plural(runs.length, "kernel")} in ${time(end)}; the table of steps has their times" width="${full + EDGE.left + EDGE.right}" height="${height}"><text class="axis" x="4" y="47">layers</text><text class="axis" x="4" y="76">kernels</text>${layers.join("")}${bars.join("")}${ticks.join("")}</svg>`;
}

/** Return a table of layers as HTML, with the times of all functions of the page. */
function layersTable(models, current, depth) {
  const truncated = (layer) => (layer ? layer.split(".").slice(0, depth).join(".") : "");
  const sums = models.map((model) => {
    const byLayer = new Map();
    model.steps.forEach((step, i) => {
      const { layer } = itemLayer(model, step.node);
      const name = truncated(layer);
      const sum = byLayer.get(name) ?? { steps: 0, bytes: 0, flops: 0, roofline: 0, seconds: 0 };
      sum.steps += 1;
      for (const key of ["bytes", "flops", "roofline"]) sum[key] += step[key] ?? 0;
      sum.seconds += model.seconds[i];
      byLayer.set(name, sum);
    });
    return byLayer;
  });
  const currentSums = sums[models.indexOf(current)];
  const names = [...new Set(sums.flatMap((byLayer) => [...byLayer.keys()]))];
  names.sort((a, b) => (currentSums.get(b)?.seconds ?? 0) - (currentSums.get(a)?.seconds ?? 0) || (currentSums.get(b)?.flops ?? 0) - (currentSums.get(a)?.flops ?? 0));
  const others = models.filter((model) => model !== current);
  const head = ["layer", "steps", "time", "share", "bytes", "FLOPs", "of the roofline (estimate)", ...others.flatMap((m) => [`time of ${m.data.title}`, "times as fast"])];
  const lines = names.map((name) => {
    const own = currentSums.get(name) ?? { steps: 0, bytes: 0, flops: 0, roofline: 0, seconds: 0 };
    const comparisons = others.flatMap((model) => {
      const other = sums[models.indexOf(model)].get(name);
      const both = other?.seconds && own.seconds;
      return [other?.seconds ? time(other.seconds) : "", both ? (other.seconds / own.seconds).toFixed(2) : ""];
    });
    const cells = [own.steps, own.seconds ? time(own.seconds) : "", own.seconds ? percent(own.seconds / current.total) : "", bytes(own.bytes), flops(own.flops), own.seconds ? percent(own.roofline / own.seconds) : "", ...comparisons];
    return `<tr data-layer="${escape(name)}"><th scope="row"><button data-layer="${escape(name)}">${escape(name || "no layer")}</button></th>${cells.map((c) => `<td>${c}</td>`).join("")}</tr>`;
  });
  return `<table class="plain numbers" aria-label="layers"><thead><tr>${head.map((h) => `<th scope="col">${escape(h)}</th>`).join("")}</tr></thead><tbody>${lines.join("")}</tbody></table>`;
}

/** Return the node of a step, or for a fused kernel the layer of most of its ops. */
function itemLayer(model, id) {
  const snapshot = model.snapshot(model.last);
  const entry = snapshot.entries.get(id);
  if (entry?.node.kind !== "box") return model.nodes.get(id) ?? { layer: "" };
  return { layer: layerOfBox(snapshot, entry, snapshot.inside(id)) };
}

const COLUMNS = [
  ["step", (model, i) => i, String],
  ["op", (model, i) => model.steps[i].name, escape],
  ["layer", (model, i) => itemLayer(model, model.steps[i].node).layer, escape],
  ["kernel", (model, i) => model.steps[i].kernel, escape],
  ["time", (model, i) => model.seconds[i], (s) => (s ? time(s) : "")],
  ["bytes", (model, i) => model.steps[i].bytes, bytes],
  ["FLOPs", (model, i) => model.steps[i].flops, flops],
  ["of the roofline (estimate)", (model, i) => (model.seconds[i] ? model.steps[i].roofline / model.seconds[i] : 0), (s) => (s ? percent(s) : "")],
];

/** Return a table of steps, sorted by a column, as HTML. */
function stepsTable(model, sort) {
  const [column, sign] = [Math.abs(sort) - 1, Math.sign(sort)];
  const value = COLUMNS[column][1];
  const keys = model.steps.map((_, i) => value(model, i));
  const order = [...keys.keys()].sort((a, b) => sign * (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : 0) || a - b);
  const head = COLUMNS.map(([name], i) => `<th scope="col"${i === column ? ` aria-sort="${sign > 0 ? "ascending" : "descending"}"` : ""}><button data-sort="${i + 1}">${name}${i === column ? (sign > 0 ? " ↑" : " ↓") : ""}</button></th>`);
  const lines = order.map((i) => `<tr data-step="${i}"><th scope="row"><button data-step="${i}">${i}</button></th>${COLUMNS.slice(1).map(([, get, show]) => `<td>${show(get(model, i))}</td>`).join("")}</tr>`);
  return `<table class="plain numbers steps" aria-label="steps"><thead><tr>${head.join("")}</tr></thead><tbody>${lines.join("")}</tbody></table>`;
}
