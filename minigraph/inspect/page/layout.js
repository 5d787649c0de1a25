/* The layout of a graph: layers are rows, and a row has small graphs that flow from top to bottom. */

const NODE = { width: 148, height: 42, gap: 10, rowGap: 16 };
const CHIP = { height: 24, gap: 4, limit: 60 };
const HEADER = 34;
const PAD = 10;

/** Return the items of a snapshot by id: nodes outside of boxes, and outermost boxes with their ops. */
function itemsOf(snapshot) {
  snapshot.items ??= makeItems(snapshot);
  return snapshot.items;
}

function makeItems(snapshot) {
  const items = new Map();
  for (const entry of snapshot.entries.values()) {
    const { kind } = entry.node;
    if (entry.box || kind === "constant" || kind === "parameter") continue;
    const inside = kind === "box" ? snapshot.inside(entry.id) : [];
    const layer = kind === "box" ? layerOfBox(snapshot, entry, inside) : entry.node.layer;
    const members = [entry.id, ...inside];
    const reads = new Set(members.flatMap((id) => snapshot.entries.get(id).reads.map((x) => snapshot.outermost(x))));
    reads.delete(entry.id);
    items.set(entry.id, { id: entry.id, node: entry.node, inside, layer, reads: [...reads] });
  }
  return items;
}

/** Return the layer of more than half of the ops in a box, else the common ancestor of their layers. */
function layerOfBox(snapshot, box, inside) {
  const layers = inside.map((id) => snapshot.entries.get(id).node.layer);
  const counts = new Map();
  for (const layer of layers) counts.set(layer, (counts.get(layer) ?? 0) + 1);
  const [most, n] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [box.node.layer, 1];
  if (n * 2 > layers.length) return most;
  const paths = [...counts.keys()].map((layer) => layer.split("."));
  let depth = 0;
  while (paths.every((path) => path[depth] !== undefined && path[depth] === paths[0][depth])) depth++;
  return paths[0].slice(0, depth).join(".");
}

/** A layer with its sublayers and its own items. */
class Layer {
  constructor(path) {
    this.path = path;
    this.name = path.slice(path.lastIndexOf(".") + 1);
    this.layers = new Map();
    this.items = [];
  }

  /** Return the layer at a path below this one; create it if it is missing. */
  at(path) {
    let layer = this;
    const names = path ? path.split(".") : [];
    names.forEach((name, i) => {
      if (!layer.layers.has(name)) {
        layer.layers.set(name, new Layer(names.slice(0, i + 1).join(".")));
      }
      layer = layer.layers.get(name);
    });
    return layer;
  }

  /** All items of the layer and its sublayers. */
  get all() {
    this._all ??= [...this.items, ...[...this.layers.values()].flatMap((layer) => layer.all)];
    return this._all;
  }

  /** The order of the first op, of the forward pass if there is one. */
  get order() {
    if (this._order !== undefined) return this._order;
    const forward = this.all.filter((item) => item.node.role === "forward");
    const orders = (forward.length ? forward : this.all).map((item) => item.node.order);
    this._order = orders.reduce((a, b) => Math.min(a, b), Infinity);
    return this._order;
  }
}

/** Return the root of the layer tree of a snapshot. */
function layersOf(snapshot) {
  if (!snapshot.layers) {
    snapshot.layers = new Layer("");
    for (const item of itemsOf(snapshot).values()) snapshot.layers.at(item.layer).items.push(item);
  }
  return snapshot.layers;
}

/** The rows of a graph: headers of layers, and the ops of a layer with a column for each role. */
class Rows {
  constructor(snapshot, open, width) {
    this.snapshot = snapshot;
    this.width = width;
    this.items = itemsOf(snapshot);
    this.root = layersOf(snapshot);
    this.roles = ROLES.filter((role) => [...this.items.values()].some((i) => i.node.role === role));
    this.columns = columnsOf(this.roles, width);
    this.rows = [];
    this.places = new Map(); // for each item {x, y, width, height, role, row}
    this.layerRow = new Map(); // the header row of each layer, by path
    this.height = PAD;
    this._emit(this.root, 0, open);
  }

  _emit(layer, depth, open) {
    const parts = [...layer.layers.values()].map((child) => ({ order: child.order, child }));
    const own = layer.items.filter((item) => item.node.role === "forward");
    parts.push(...own.map((item) => ({ order: item.node.order, item })));
    parts.sort((a, b) => a.order - b.order);
    const rows = [];
    for (const { child, item } of parts) {
      if (child) rows.push({ child });
      else if (rows.at(-1)?.items) rows.at(-1).items.push(item);
      else rows.push({ items: [item] });
    }
    const others = layer.items.filter((item) => item.node.role !== "forward");
    if (others.length) {
      const last = rows.findLast((row) => row.items);
      if (last) last.items.push(...others);
      else rows.push({ items: others });
    }
    for (const { child, items } of rows) {
      if (items) this._ops(items, depth);
      else this._header(child, depth, open);
    }
  }

  _header(layer, depth, open) {
    const isOpen = open.has(layer.path);
    const row = { kind: "layer", layer, depth, open: isOpen, y: this.height, height: HEADER };
    this.layerRow.set(layer.path, row);
    this.rows.push(row);
    this.height += HEADER + 6;
    if (isOpen) {
      this._emit(layer, depth + 1, open);
      row.end = this.height;
      this.height += 4;
    }
  }

  _ops(items, depth) {
    const row = { kind: "ops", depth, y: this.height, height: 0, cells: [] };
    for (const column of this.columns) {
      const mine = items.filter((item) => item.node.role === column.role);
      const x = column.x + (column === this.columns[0] ? PAD + depth * 12 : PAD);
      const graph = new SmallGraph(this.snapshot, mine, column.x + column.width - x - PAD);
      row.cells.push({ x, graph });
      row.height = Math.max(row.height, graph.height);
      for (const box of graph.boxes) {
        this.places.set(box.id, { ...box, x: x + box.x, y: row.y + box.y, role: column.role, row });
      }
    }
    this.rows.push(row);
    this.height += row.height + 12;
  }

  /** Return the place of a node, or of the box or the collapsed layer that contains it. */
  find(id) {
    const outer = this.snapshot.outermost(id);
    if (this.places.has(outer)) return this.places.get(outer);
    const item = this.items.get(outer);
    if (!item) return undefined;
    const names = item.layer.split(".");
    for (let i = 1; i <= names.length; i++) {
      const row = this.layerRow.get(names.slice(0, i).join("."));
      if (row && !row.open) {
        const column = this.columns.find((c) => c.role === item.node.role);
        return { ...column, y: row.y, height: HEADER, row, role: column.role };
      }
    }
    return undefined;
  }
}

function columnsOf(roles, width) {
  const shares = { forward: 4, backward: 4, update: 3 };
  const whole = roles.reduce((sum, role) => sum + shares[role], 0);
  let x = 0;
  return roles.map((role) => {
    const column = { role, x, width: (width * shares[role]) / whole };
    x += column.width;
    return column;
  });
}

/** A layout of a few items from top to bottom: a node is below the nodes that it reads. */
class SmallGraph {
  constructor(snapshot, items, width) {
    this.snapshot = snapshot;
    this.boxes = [];
    this.edges = [];
    this.height = 0;
    const across = Math.max(1, Math.floor((width + NODE.gap) / (NODE.width + NODE.gap)));
    const size = (width - (across - 1) * NODE.gap) / across;
    const ranks = this._ranks(items);
    for (const rank of ranks) {
      let x = 0;
      let tallest = 0;
      for (const item of rank) {
        const chips = item.node.kind === "box" ? chipsOf(snapshot, item, width) : null;
        const own = chips ? width : Math.min(size, 220);
        if (x && x + own > width + 1) {
          x = 0;
          this.height += tallest + NODE.rowGap;
          tallest = 0;
        }
        const height = chips ? chips.height : NODE.height;
        this.boxes.push({ id: item.id, item, chips, x, y: this.height, width: own, height });
        tallest = Math.max(tallest, height);
        x += own + NODE.gap;
      }
      this.height += tallest + NODE.rowGap;
    }
    this.height = Math.max(0, this.height - NODE.rowGap);
    this._connect();
  }

  /** Return the items by rank: the length of the longest path from an item that reads no other. */
  _ranks(items) {
    const mine = new Map(items.map((item) => [item.id, item]));
    this.reads = new Map();
    for (const item of items) this.reads.set(item.id, item.reads.filter((id) => mine.has(id)));
    const rank = new Map();
    const visit = [...items].sort((a, b) => a.node.order - b.node.order || a.id - b.id);
    for (let round = 0, changed = true; changed && round <= items.length; round++) {
      changed = false;
      for (const { id } of visit) {
        const least = Math.max(0, ...this.reads.get(id).map((x) => (rank.get(x) ?? 0) + 1));
        if (least !== rank.get(id)) {
          rank.set(id, least);
          changed = true;
        }
      }
    }
    const ranks = [];
    for (const item of visit) (ranks[rank.get(item.id)] ??= []).push(item);
    return ranks;
  }

  _connect() {
    const at = new Map(this.boxes.map((box) => [box.id, box]));
    for (const box of this.boxes) {
      for (const id of this.reads.get(box.id)) this.edges.push([at.get(id), box]);
    }
  }
}

/** Return the layout of the ops in a box, in lines. */
function chipsOf(snapshot, item, width) {
  const shown = item.inside.slice(0, CHIP.limit);
  const chips = [];
  let x = 8;
  let y = 28;
  const put = (id, text, role) => {
    const size = Math.min(7.3 * text.length + 16, width - 16);
    if (x > 8 && x + size > width - 8) {
      x = 8;
      y += CHIP.height + CHIP.gap;
    }
    chips.push({ id, text, role, x, y, width: size });
    x += size + CHIP.gap;
  };
  for (const id of shown) {
    const { node } = snapshot.entries.get(id);
    put(id, node.name, node.role);
  }
  if (item.inside.length > CHIP.limit) put(item.id, `and ${item.inside.length - CHIP.limit} more`, "");
  return { chips, height: y + CHIP.height + 8 };
}

/** Return the SVG path of a curve from the bottom of a box to the top of another. */
function curve(from, to) {
  const [x1, y1] = [from.x + from.width / 2, from.y + from.height];
  const [x2, y2] = [to.x + to.width / 2, to.y];
  const bend = Math.max(8, Math.abs(y2 - y1) / 2);
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}
