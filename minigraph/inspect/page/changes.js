/* The main view of a pass: its changes, before and after. */

const KINDS_SHOWN = 40;
const NEIGHBOURS_SHOWN = 6; // on each side of a change, at most

/**
 * Return the changes of a pass by kind, the most frequent first.
 *
 * A change is a set (union-find) of removed and added nodes that are connected.
 */
function changesOf(model, k) {
  const before = model.snapshot(k - 1);
  const after = model.snapshot(k);
  const parent = new Map();
  const root = (id) => {
    while (parent.has(id) && parent.get(id) !== id) id = parent.get(id);
    return id;
  };
  const merge = (a, b) => {
    for (const id of [a, b]) if (!parent.has(id)) parent.set(id, id);
    parent.set(root(a), root(b));
  };
  const { added, removed, rewired } = model.stages[k];
  const shown = (id) => model.nodes.get(id).kind !== "constant";
  const addedIds = added.map((node) => node.id).filter(shown);
  const removedIds = removed.map(({ id }) => id).filter(shown);
  const isNew = new Set(addedIds);
  const byOrder = new Map();
  for (const id of [...removedIds, ...addedIds]) {
    merge(id, id);
    const { order } = model.nodes.get(id);
    if (byOrder.has(order)) merge(id, byOrder.get(order));
    byOrder.set(order, id);
  }
  for (const id of removedIds) {
    for (const other of model.replacedBy.get(id)) if (isNew.has(other)) merge(id, other);
  }
  const attached = new Set(removedIds.map(root));
  for (const id of addedIds) {
    if (attached.has(root(id)) || model.nodes.get(id).kind === "box") continue;
    const neighbours = [...(after.entries.get(id)?.reads ?? []), ...(after.readers.get(id) ?? [])];
    const neighbour = neighbours.find((x) => isNew.has(x));
    if (neighbour) merge(id, neighbour);
  }
  for (const { id, box } of [...rewired, ...added]) {
    if (box && isNew.has(box) && shown(id)) merge(id, box);
  }
  const groups = new Map();
  for (const id of parent.keys()) {
    const set = root(id);
    if (!groups.has(set)) groups.set(set, []);
    groups.get(set).push(id);
  }
  const kinds = new Map();
  for (const ids of groups.values()) {
    const change = { old: ids.filter((id) => before.entries.has(id)), now: ids.filter((id) => after.entries.has(id)) };
    change.layer = commonLayer(model, ids);
    change.title = titleOf(model, change, ids);
    const title = change.title;
    if (!kinds.has(title)) kinds.set(title, []);
    kinds.get(title).push(change);
  }
  return [...kinds].map(([title, changes]) => ({ title, changes })).sort((a, b) => b.changes.length - a.changes.length);
}

/** Return a description of the constants, which the page does not draw, that a pass removed and added. */
function constantsOf(model, k) {
  const { removed, added } = model.stages[k];
  return Object.entries({ removed, "new": added }).flatMap(([what, changed]) => {
    const found = changed.map(({ id }) => model.nodes.get(id)).filter((node) => node.kind === "constant");
    return found.length ? [`${plural(found.length, "constant")} ${what}: ${truncate(counted(found.map((node) => node.name)))}`] : [];
  });
}

function commonLayer(model, ids) {
  const counts = new Map();
  for (const id of ids) {
    const { layer } = model.nodes.get(id);
    counts.set(layer, (counts.get(layer) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "";
}

function truncate(text) {
  return text.length > 90 ? `${text.slice(0, 88)} …` : text;
}

function titleOf(model, { old, now }, ids) {
  const names = (list) => counted(list.map((id) => model.nodes.get(id).name).sort());
  const boxes = now.filter((id) => model.nodes.get(id).kind === "box" && !old.includes(id));
  if (boxes.length) {
    const inside = old.filter((id) => model.nodes.get(id).kind === "op");
    return `${truncate(names(inside))} → ${boxes.length > 1 ? `${boxes.length} kernels` : "one kernel"}`;
  }
  const left = old.filter((id) => !now.includes(id));
  const right = now.filter((id) => !old.includes(id));
  if (!right.length) {
    const kept = ids.flatMap((id) => model.replacedBy.get(id) ?? []);
    return `${truncate(names(left))} ${kept.length ? "→ an equal node" : "→ removed"}`;
  }
  return left.length ? `${truncate(names(left))} → ${truncate(names(right))}` : `new: ${truncate(names(right))}`;
}

/** The view with a card for each kind of change of a pass. */
class ChangesView {
  constructor(element, page) {
    this.element = element;
    this.page = page;
    this.chosen = new Map(); // for each kind, the index of the change that is shown
    element.addEventListener("click", (event) => page.keepFocus(() => this._click(event)));
  }

  show(model, k) {
    if (this.model !== model || this.k !== k) {
      this.chosen.clear();
      this.kinds = changesOf(model, k);
      this.element.scrollTop = 0;
    }
    this.model = model;
    this.k = k;
    const stage = model.stages[k];
    const width = this.element.clientWidth - 40;
    const count = this.kinds.reduce((sum, kind) => sum + kind.changes.length, 0);
    const constants = constantsOf(model, k);
    const shown = count ? `${plural(count, "change")} of ${plural(this.kinds.length, "kind")}` : "";
    const what = [shown, ...constants].filter(Boolean).join("; ");
    const only = constants.length ? "only constants" : isTouched(stage) ? "only which results nodes read" : "nothing";
    const none = count ? "" : `<p class="hint">This pass changed ${only}.</p>`;
    const cards = this.kinds.slice(0, KINDS_SHOWN).map((kind, i) => this._card(kind, i, width));
    const rest = this.kinds.length - cards.length;
    this.element.innerHTML = `<h2>${escape(stage.name)} <small>${escape(what)}</small></h2>${none}${cards.join("")}${rest > 0 ? `<p>and ${plural(rest, "kind")} more</p>` : ""}`;
    this.mark();
  }

  mark() {
    markPicked(this.element, `[data-id="${this.page.state.node}"]`);
  }

  _card(kind, i, width) {
    const at = this.chosen.get(i) ?? 0;
    const change = kind.changes[at];
    const sideWidth = isNarrow() ? width - 16 : (width - 30) / 2;
    const sides = [
      this._side(this.k - 1, change.old, change.now, sideWidth, "removed"),
      this._side(this.k, change.now, change.old, sideWidth, "added"),
    ];
    const where = kind.changes.slice(0, 60).map((each, j) => {
      const name = each.layer || "no layer";
      return `<button data-kind="${i}" data-change="${j}" class="${j === at ? "on" : ""}" aria-pressed="${j === at}">${escape(name)}</button>`;
    });
    const more = kind.changes.length - where.length;
    const places = `<p class="where">${where.join("")}${more > 0 ? `<span>and ${more} more</span>` : ""}</p>`;
    return `<section class="card"><h3>${kind.changes.length > 1 ? `${kind.changes.length} × ` : ""}${escape(kind.title)}</h3>${places}<div class="sides"><div><h4>before</h4>${sides[0]}</div><div><h4>after</h4>${sides[1]}</div></div></section>`;
  }

  /** Return the nodes of a change in a stage, with their neighbours, as HTML. */
  _side(k, ids, others, width, mark) {
    const snapshot = this.model.snapshot(k);
    const outer = new Set(ids.map((id) => snapshot.outermost(id)));
    const kept = new Set(others);
    const around = new Set();
    const addNeighbour = (id) => {
      const outermost = snapshot.outermost(id);
      const { kind } = snapshot.entries.get(outermost)?.node ?? { kind: "constant" };
      if (kind !== "constant" && !outer.has(outermost) && around.size < NEIGHBOURS_SHOWN) around.add(outermost);
    };
    for (const id of ids) {
      for (const x of snapshot.entries.get(id).reads) addNeighbour(x);
      for (const x of snapshot.readers.get(id) ?? []) addNeighbour(x);
    }
    for (const id of others) for (const other of this.model.replacedBy.get(id) ?? []) if (snapshot.entries.has(other)) addNeighbour(other);
    const marks = new Map([...around].map((id) => [id, "context"]));
    for (const id of ids) if (!kept.has(id)) marks.set(id, mark);
    const items = [...outer, ...around].map((id) => {
      const { node } = snapshot.entries.get(id); // without an item, for example a parameter
      return itemsOf(snapshot).get(id) ?? { id, node, inside: [], reads: [] };
    });
    const graph = new SmallGraph(snapshot, items, width - 16);
    return `<div class="small" style="height:${graph.height + 16}px">${drawSmall(graph, 8, 8, marks)}</div>`;
  }

  _click(event) {
    const change = event.target.closest("[data-change]");
    const node = event.target.closest("[data-id]");
    if (change) {
      this.chosen.set(Number(change.dataset.kind), Number(change.dataset.change));
      this.show(this.model, this.k);
    } else if (node) {
      this.page.pick(Number(node.dataset.id));
    }
  }
}
