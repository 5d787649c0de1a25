/* The main view of a stage: its graph, by layer. */

/** The graph in a scrolling element; only the visible rows are in the document. */
class GraphView {
  constructor(element, page) {
    this.element = element;
    this.page = page;
    element.innerHTML = '<div class="columns"></div><div class="sheet"><svg class="wires" aria-hidden="true"></svg><div class="rows"></div></div>';
    this.heads = element.querySelector(".columns");
    this.sheet = element.querySelector(".sheet");
    this.wires = element.querySelector(".wires");
    this.body = element.querySelector(".rows");
    element.addEventListener("scroll", () => this.fill());
    element.addEventListener("click", (event) => page.keepFocus(() => this._click(event)));
  }

  /** Draw stage k of a function; `open` has the paths of expanded layers. */
  show(model, k, open) {
    const sameStage = model === this.model && k === this.rows.snapshot.k && !this.element.hidden;
    this.element.hidden = false;
    this.model = model;
    this.rows = new Rows(model.snapshot(k), open, Math.max(520, this.element.clientWidth - 2));
    this.sheet.style.height = `${this.rows.height + 40}px`;
    this.sheet.style.width = `${this.rows.width}px`;
    this.heads.innerHTML = this.rows.columns
      .map(({ role, width }) => `<span class="${role}" style="width:${width}px">${role}</span>`)
      .join("");
    this.body.innerHTML = "";
    this.drawn = new Map();
    if (!sameStage) this.element.scrollTop = 0; // Tab cannot reach rows above those in the document
    this.fill();
    this._connect();
  }

  /** Add the visible rows to the document, and remove the others. */
  fill() {
    const top = this.element.scrollTop - 300;
    const bottom = top + this.element.clientHeight + 600;
    let before = null; // keep rows in order, for Tab
    for (const row of this.rows.rows) {
      const visible = row.y < bottom && row.y + row.height > top;
      let drawn = this.drawn.get(row);
      if (drawn && !visible && !drawn.contains(document.activeElement)) {
        drawn.remove();
        this.drawn.delete(row);
      } else if (visible && !drawn) {
        drawn = document.createElement("div");
        drawn.innerHTML = row.kind === "layer" ? this._header(row) : this._ops(row);
        this.drawn.set(row, drawn);
        if (before) before.after(drawn);
        else this.body.prepend(drawn);
      }
      if (drawn?.isConnected) before = drawn;
    }
    this.mark();
  }

  /** Highlight the selected node, and its edges to the nodes that it reads and that read it. */
  mark() {
    const { node } = this.page.state;
    markPicked(this.body, `[data-id="${node}"]`);
    const entry = this.rows.snapshot.entries.get(node);
    const [reads, readers] = this.wires.querySelectorAll(".reads, .readers");
    if (!reads) return;
    const ids = entry ? [node, ...this.rows.snapshot.inside(node)] : [];
    const inside = new Set(ids);
    const from = ids.flatMap((id) => this.rows.snapshot.entries.get(id).reads);
    const to = ids.flatMap((id) => this.rows.snapshot.readers.get(id) ?? []);
    reads.setAttribute("d", this._paths(from.filter((id) => !inside.has(id)).map((id) => [id, node])));
    readers.setAttribute("d", this._paths(to.filter((id) => !inside.has(id)).map((id) => [node, id])));
  }

  scrollTo(id) {
    const place = this.rows.find(id);
    if (!place) return;
    const middle = place.y - this.element.clientHeight / 2 + place.height / 2;
    const isFar = Math.abs(this.element.scrollTop - middle) > this.element.clientHeight / 2 - 60;
    if (isFar) this.element.scrollTop = middle;
    this.fill();
  }

  _header(row) {
    const { layer } = row;
    const cells = this.rows.columns.map((column, i) => {
      const items = layer.all.filter((item) => item.node.role === column.role);
      const left = i ? 0 : 12 * row.depth;
      const label = i ? "" : `<b>${row.open ? "▾" : "▸"} ${escape(row.depth ? layer.name : layer.path)}</b> `;
      const text = row.open && i === 0 ? "" : this._summary(items);
      const kind = items.length && !row.open ? ` full ${column.role}` : "";
      return `<span class="cell${kind}" style="left:${column.x + left + 4}px;width:${column.width - left - 8}px">${label}<small>${text}</small></span>`;
    });
    const frame = row.open
      ? `<i class="frame" style="top:${row.y}px;left:${2 + 12 * row.depth}px;width:${this.rows.width - 6 - 12 * row.depth}px;height:${row.end - row.y}px"></i>`
      : "";
    return `${frame}<button class="layer" data-layer="${escape(layer.path)}" title="${escape(layer.path)}" style="top:${row.y}px;width:${this.rows.width}px" aria-expanded="${row.open}">${cells.join("")}</button>`;
  }

  /** Return a summary of the nodes of a collapsed layer in a column. */
  _summary(items) {
    if (!items.length) return "";
    const kernels = items.filter((item) => item.node.kind === "box").length;
    const ops = items.reduce((sum, item) => sum + (item.inside.length || 1), 0);
    const heavy = items.filter((item) => /conv|matmul/.test(item.node.name)).map((i) => i.node.name.replace(/_backward_(data|weight)s?$/, " $1 gradient"));
    const steps = new Set(items.map((item) => this.model.stepOf.get(item.id)));
    const spent = [...steps].reduce((sum, i) => sum + (this.model.seconds[i] ?? 0), 0);
    const parts = [heavy.length ? counted(heavy) : "", plural(ops, "op")];
    if (kernels) parts.push(plural(kernels, "kernel"));
    if (spent && this.rows.snapshot.k === this.model.last) parts.push(`<em>${time(spent)}</em>`);
    return parts.filter(Boolean).join(" · ");
  }

  _ops(row) {
    return row.cells.map(({ x, graph }) => drawSmall(graph, x, row.y)).join("");
  }

  /** Draw the edges between rows of a column: a line to the next row, an arc to rows farther away. */
  _connect() {
    const { rows } = this;
    const seen = new Set();
    let d = "";
    for (const item of rows.items.values()) {
      const to = rows.find(item.id);
      for (const id of to && to.role !== "update" ? item.reads : []) {
        const from = rows.find(id);
        const key = from && `${from.role} ${from.x},${from.y} ${to.x},${to.y}`;
        if (!from || from.row === to.row || from.role !== to.role || seen.has(key)) continue;
        seen.add(key);
        d += this._wire(from, to);
      }
    }
    this.wires.setAttribute("width", rows.width);
    this.wires.setAttribute("height", rows.height + 40);
    this.wires.innerHTML = `<path class="flow" d="${d}"/><path class="reads"/><path class="readers"/>`;
    this.mark();
  }

  _wire(from, to) {
    const down = to.y > from.y;
    const [a, b] = down ? [from, to] : [to, from];
    const gap = b.y - a.y - a.height;
    if (gap < 60) return curve(a, b);
    const [y1, y2] = [a.y + a.height / 2, b.y + b.height / 2];
    const out = Math.min(a.x, b.x) - Math.min(26, 8 + (y2 - y1) / 60);
    return `M${a.x} ${y1}C${out} ${y1} ${out} ${y1} ${out} ${y1 + 14}L${out} ${y2 - 14}C${out} ${y2} ${out} ${y2} ${b.x} ${y2}`;
  }

  _paths(pairs) {
    const paths = new Set();
    for (const [from, to] of pairs) {
      const [a, b] = [this.rows.find(from), this.rows.find(to)];
      if (a && b && (a.x !== b.x || a.y !== b.y)) paths.add(a.y <= b.y ? curve(a, b) : curve(b, a));
    }
    return [...paths].slice(0, 400).join("");
  }

  _click(event) {
    const layer = event.target.closest("[data-layer]");
    const node = event.target.closest("[data-id]");
    if (node) this.page.pick(Number(node.dataset.id));
    else if (layer) this.page.toggle(layer.dataset.layer);
  }
}

/** Mark the elements that match a selector as picked, and no others. */
function markPicked(element, selector) {
  for (const picked of element.querySelectorAll(".picked")) {
    picked.classList.remove("picked");
    picked.removeAttribute("aria-current");
  }
  for (const found of element.querySelectorAll(selector)) {
    found.classList.add("picked");
    if (found.matches("button, tr")) found.setAttribute("aria-current", "true");
  }
}

/** Return a small graph at (x, y) as HTML; `marks` has CSS classes by id. */
function drawSmall(graph, x, y, marks = new Map()) {
  const lines = graph.edges.map(([from, to]) => curve(from, to)).join("");
  const wires = lines
    ? `<svg class="local" aria-hidden="true" style="left:${x}px;top:${y}px" width="1" height="1"><path d="${lines}"/></svg>`
    : "";
  const boxes = graph.boxes.map((box) => {
    const { node } = box.item;
    const mark = marks.get(box.id) ?? "";
    const place = `left:${x + box.x}px;top:${y + box.y}px;width:${box.width}px;height:${box.height}px`;
    if (!box.chips) {
      return `<button class="node ${node.role} ${node.kind} ${mark}" data-id="${box.id}" style="${place}" title="${escape(node.name)} ${escape(node.results.join(", "))}"><b>${escape(node.name)}</b><small>${escape(shortShape(node))}</small></button>`;
    }
    const chips = box.chips.chips.map(
      (chip) =>
        `<button class="chip ${chip.role} ${marks.get(chip.id) ?? ""}" data-id="${chip.id}" style="left:${chip.x}px;top:${chip.y}px;width:${chip.width}px">${escape(chip.text)}</button>`,
    );
    const title = `${boxName(node)} of ${plural(box.item.inside.length, "op")}`;
    return `<div class="box ${node.role} ${mark}" data-id="${box.id}" style="${place}"><button class="title" data-id="${box.id}">${title}</button>${chips.join("")}</div>`;
  });
  return wires + boxes.join("");
}
