/* The data of the page: the stages, nodes, steps and buffers of functions, by id. */

const ROLES = ["forward", "backward", "update"];

/** Return the functions in the page's data: compressed JSON in base64. */
async function load() {
  const packed = document.getElementById("data").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const file = JSON.parse(await new Response(stream).text());
  return file.functions.map((data) => new Model(data));
}

/** A compiled function. */
class Model {
  constructor(data) {
    this.data = data;
    const records = [{ name: "as written", after: data.passes[0]?.before ?? data.stages[0].added.length, seconds: 0, fired: {} }, ...data.passes];
    this.stages = data.stages.map((stage, k) => ({ ...stage, name: records[k].name, nodes: records[k].after, fired: records[k].fired }));
    [this.bandwidth, this.peak] = data.speeds ?? [Infinity, Infinity];
    this.steps = data.steps.map((step) => ({ ...step, roofline: Math.max(step.bytes / this.bandwidth, step.flops / this.peak) }));
    this.buffers = data.buffers.map((buffer) => ({ node: 0, offset: 0, first: 0, last: 0, successor: 0, ...buffer }));
    this.nodes = new Map(); // of all stages
    this.addedAt = new Map(); // for each node, the stage that added it
    this.removedAt = new Map(); // for each removed node, the stage that removed it
    this.replacedBy = new Map(); // for each removed node, the ids of its replacements
    this.snapshots = [];
    data.stages.forEach((stage, k) => {
      for (const node of stage.added) {
        this.nodes.set(node.id, { reads: [], layer: "", role: "forward", text: "", line: "", box: 0, ...node });
        this.addedAt.set(node.id, k);
      }
      for (const gone of stage.removed) {
        this.removedAt.set(gone.id, k);
        this.replacedBy.set(gone.id, gone.became ?? []);
      }
    });
    this.stepOf = new Map(); // for each node, its last step that is not a copy
    data.steps.forEach((step, i) => {
      if (step.name !== "copy") this.stepOf.set(step.node, i);
    });
    this.seconds = new Float64Array(data.steps.length); // of each step in the profile
    for (const run of data.runs) this.seconds[run.step] += run.seconds;
    this.profiled = data.runs.length > 0;
    this.total = this.seconds.reduce((a, b) => a + b, 0);
    this.stops = new Map(); // for each node, why it was not fused with neighbours
    data.stages.forEach((stage, k) => {
      stage.stops.forEach((ids, i) => {
        const { producer, consumer, reason } = data.passes[k - 1].stops[i];
        for (const id of ids) {
          if (!this.stops.has(id)) this.stops.set(id, []);
          this.stops.get(id).push({ producer: ids[0], consumer: ids[1], names: [producer, consumer], reason });
        }
      });
    });
  }

  get last() {
    return this.stages.length - 1;
  }

  /** Return the graph after stage k: entries {id, node, reads, box} by id. */
  snapshot(k) {
    if (!this.snapshots[k]) this.snapshots[k] = new Snapshot(this, k);
    return this.snapshots[k];
  }

  /** Return the number of the step that computes a node, or a box around it; undefined if there is none. */
  step(id) {
    const snapshot = this.snapshot(this.last);
    for (let at = id; at; at = snapshot.entries.get(at)?.box ?? 0) {
      if (this.stepOf.has(at)) return this.stepOf.get(at);
    }
    return undefined;
  }

  /** Return a description of a buffer's contents. */
  contentsOf(buffer) {
    if (buffer.node) return this.label(buffer.node);
    const user = this.steps[buffer.first];
    return user ? `scratch of ${this.label(user.node)}` : "scratch";
  }

  /** Return a node's name and layer: "conv2d of layer1.0.conv1". */
  label(id) {
    const node = this.nodes.get(id);
    if (!node) return "nothing";
    const name = node.kind === "box" ? boxName(node) : node.name;
    return node.layer && node.kind !== "parameter" ? `${name} of ${node.layer}` : name;
  }
}

/** Return whether a pass changed any node. */
function isTouched(stage) {
  return stage.added.length + stage.removed.length + stage.rewired.length > 0;
}

/** The graph after one stage. */
class Snapshot {
  constructor(model, k) {
    this.model = model;
    this.k = k;
    this.entries = new Map(k ? model.snapshot(k - 1).entries : []);
    const stage = model.stages[k];
    for (const gone of stage.removed) this.entries.delete(gone.id);
    for (const { id } of stage.added) {
      const node = model.nodes.get(id);
      this.entries.set(id, { id, node, reads: node.reads, box: node.box });
    }
    for (const { id, reads, box } of stage.rewired) {
      this.entries.set(id, { id, node: model.nodes.get(id), reads, box });
    }
  }

  /** The ids of the nodes directly inside each box, in the order in which they were made. */
  get members() {
    if (!this._members) {
      this._members = new Map();
      for (const entry of this.entries.values()) {
        if (!entry.box) continue;
        if (!this._members.has(entry.box)) this._members.set(entry.box, []);
        this._members.get(entry.box).push(entry.id);
      }
      for (const ids of this._members.values()) ids.sort((a, b) => this.before(a, b));
    }
    return this._members;
  }

  before(a, b) {
    return this.entries.get(a).node.order - this.entries.get(b).node.order || a - b;
  }

  /** The ids of the nodes that read each node. */
  get readers() {
    if (!this._readers) {
      this._readers = new Map();
      for (const entry of this.entries.values()) {
        if (entry.node.kind === "box") continue;
        for (const id of new Set(entry.reads)) {
          if (!this._readers.has(id)) this._readers.set(id, []);
          this._readers.get(id).push(entry.id);
        }
      }
    }
    return this._readers;
  }

  /** Return the id of the outermost box around a node, or of the node itself. */
  outermost(id) {
    let entry = this.entries.get(id);
    while (entry?.box) entry = this.entries.get(entry.box);
    return entry?.id;
  }

  /** Return the ids of all ops inside a box, at any depth. */
  inside(box) {
    return (this.members.get(box) ?? []).flatMap((id) => {
      const { kind } = this.entries.get(id).node;
      return kind === "box" ? this.inside(id) : kind === "op" ? [id] : [];
    });
  }
}

// ---------------------------------------------------------------- formatting

function boxName(node) {
  return node.name === "fused" ? "kernel" : node.name;
}

function escape(text) {
  return String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

function bytes(n) {
  if (n < 1024) return `${n} B`;
  const unit = n < 1 << 20 ? "KiB" : n < 1 << 30 ? "MiB" : "GiB";
  const size = { KiB: 1 << 10, MiB: 1 << 20, GiB: 1 << 30 }[unit];
  return `${(n / size).toPrecision(3)} ${unit}`;
}

function time(seconds) {
  if (seconds === 0) return "0 ms";
  if (seconds < 1e-3) return `${(seconds * 1e6).toPrecision(3)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

function flops(n) {
  if (n >= 1e9) return `${(n / 1e9).toPrecision(3)} GFLOP`;
  if (n >= 1e6) return `${(n / 1e6).toPrecision(3)} MFLOP`;
  return n >= 1e3 ? `${(n / 1e3).toPrecision(3)} kFLOP` : `${n} FLOP`;
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

function plural(n, word) {
  return `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
}

/** Return names with their counts: "conv2d, 3 × add". */
function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, n]) => (n > 1 ? `${n} × ${name}` : name)).join(", ");
}

function shortShape(node) {
  return (node.results[0] ?? "") + (node.results.length > 1 ? ` and ${node.results.length - 1} more` : "");
}
