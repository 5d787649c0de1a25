/* The page: the selection and the open layers, which the address stores too; search and keys. */

const TABS = ["memory", "timeline", "layers", "steps"];
const KEYS = [
  ["/", "search"],
  ["[ and ]", "previous pass, next pass"],
  ["p and n", "previous step, next step"],
  ["o", "open the layer of the selection, or all layers"],
  ["c", "close all layers"],
  ["1 to 4", "memory, timeline, layers, steps"],
  ["b", "show or hide charts and tables"],
  ["d", "dark or light"],
  ["Esc", "clear the selection"],
  ["?", "these keys"],
];

const $ = (selector) => document.querySelector(selector);
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

class Page {
  constructor(models) {
    this.models = models;
    this.state = { f: 0, pass: -1, node: 0, buffer: 0, tab: "memory", open: new Set(), sort: -5, zoom: 1, depth: 1 };
    this.graph = new GraphView($("#graph"), this);
    this.changes = new ChangesView($("#changes"), this);
    this._fromAddress();
    this._listen();
    this.draw();
    if (this.state.node) this.graph.scrollTo(this.state.node);
  }

  get model() {
    return this.models[this.state.f];
  }

  /** The stage that is shown: the last one if no pass is selected. */
  get k() {
    return this.state.pass < 0 ? this.model.last : this.state.pass;
  }

  draw() {
    this._drawPipeline();
    this._drawMiddle();
    this._drawDetails();
    this._drawBelow();
    this._toAddress();
  }

  // -------------------------------------------------------------- selection

  pick(id) {
    const { model, state } = this;
    if (!model.nodes.has(id)) return;
    state.node = id;
    state.buffer = 0;
    if (state.pass <= 0) this._reveal(id);
    this._picked();
    if (state.pass <= 0) this.graph.scrollTo(id);
  }

  pickBuffer(id) {
    this.state.buffer = id;
    this.state.node = this.model.buffers[id - 1].node ?? 0;
    this.state.tab = "memory";
    this._picked();
  }

  pickPass(pass) {
    this.state.pass = Math.max(-1, Math.min(pass, this.model.last));
    this._drawPipeline();
    this._drawMiddle();
    this._drawDetails();
    this._toAddress();
  }

  pickFunction(f) {
    Object.assign(this.state, { f, pass: -1, node: 0, buffer: 0 });
    this.draw();
  }

  toggle(path) {
    const { open } = this.state;
    if (!open.delete(path)) open.add(path);
    this._drawMiddle();
    this._toAddress();
  }

  _picked() {
    this.graph.mark();
    this.changes.mark();
    this._drawDetails();
    this._drawBelow();
    this._toAddress();
  }

  /** Open the layers around a node; show the graph as written if the node is not in this stage. */
  _reveal(id) {
    const { model, state } = this;
    if (!model.snapshot(this.k).entries.has(id)) {
      if (!model.snapshot(0).entries.has(id)) return this.pickPass(model.addedAt.get(id));
      state.pass = 0;
      this._drawPipeline();
    }
    const item = itemsOf(model.snapshot(this.k)).get(model.snapshot(this.k).outermost(id));
    const names = item?.layer ? item.layer.split(".") : [];
    const paths = names.map((_, i) => names.slice(0, i + 1).join("."));
    const closed = paths.filter((path) => !state.open.has(path));
    for (const path of closed) state.open.add(path);
    this._drawMiddle();
    return undefined;
  }

  // -------------------------------------------------------------- drawing

  _drawPipeline() {
    const { model, state } = this;
    const most = Math.max(...model.stages.map((stage) => stage.nodes));
    const lines = model.stages.map((stage, k) => {
      const touched = k === 0 || isTouched(stage);
      const fired = Object.entries(stage.fired).map(([name, n]) => `${n} × ${name}`).join(", ");
      const nodes = k ? `${model.stages[k - 1].nodes} → ${stage.nodes}` : `${stage.nodes} nodes`;
      return `<li><button data-pass="${k}" class="${k === state.pass ? "on" : ""} ${touched ? "" : "idle"}" aria-pressed="${k === state.pass}"><b>${k ? `${k} ` : ""}${escape(stage.name)}</b><span>${nodes}</span><i class="bar" style="width:${(100 * stage.nodes) / most}%"></i>${fired ? `<small>${escape(fired)}</small>` : ""}${k && !touched ? "<small>changed nothing</small>" : ""}</button></li>`;
    });
    lines.push(`<li><button data-pass="-1" class="runs ${state.pass < 0 ? "on" : ""}" aria-pressed="${state.pass < 0}"><b>what runs</b><span>${plural(model.steps.length, "step")}</span></button></li>`);
    $("#passes").innerHTML = lines.join("");
    $("#passes .on")?.scrollIntoView({ block: "nearest" });
    const select = $("#function");
    select.hidden = this.models.length < 2;
    select.innerHTML = this.models.map((m, i) => `<option value="${i}" ${i === state.f ? "selected" : ""}>${escape(m.data.title)}</option>`).join("");
    $("#title").textContent = this.models.length < 2 ? model.data.title : "";
  }

  _drawMiddle() {
    const changes = this.state.pass > 0;
    $("#changes").hidden = !changes;
    if (changes) {
      this.graph.element.hidden = true;
      this.changes.show(this.model, this.state.pass);
    } else this.graph.show(this.model, this.k, this.state.open);
  }

  _drawDetails() {
    const { model, state } = this;
    const { node, buffer } = state;
    const wanted = state.pass > 0 ? Math.max(state.pass - 1, model.addedAt.get(node) ?? 0) : this.k;
    const k = model.removedAt.has(node) ? Math.min(wanted, model.removedAt.get(node) - 1) : Math.max(wanted, model.addedAt.get(node) ?? 0);
    $("#details").innerHTML = buffer ? bufferDetails(model, buffer) : node ? details(model, node, k) : overview(model);
    $("#details").scrollTop = 0;
  }

  _drawBelow() {
    const { model, state } = this;
    const element = $("#below");
    const [width, height] = [element.clientWidth - 4, isNarrow() ? 270 : element.clientHeight - 8];
    const shown = [state.f, state.tab, width, height, state.zoom, state.sort, state.depth].join();
    if (shown !== this.below) this._drawTab(element, width, height);
    this.below = shown;
    const step = model.step(state.node);
    markPicked(element, state.buffer ? `[data-buffer="${state.buffer}"]` : `:is(tr, .run)[data-step="${step}"]`);
  }

  _drawTab(element, width, height) {
    const { model, state } = this;
    for (const button of document.querySelectorAll("#tabs [data-tab]")) {
      button.setAttribute("aria-pressed", button.dataset.tab === state.tab);
    }
    element.setAttribute("aria-label", state.tab);
    const { scrollTop, scrollLeft } = element;
    $("#zoom").hidden = state.tab !== "timeline" || !model.profiled;
    $("#depth").hidden = state.tab !== "layers";
    if (state.tab === "memory") {
      const beside = isNarrow() ? 0 : 250;
      element.innerHTML = arenaOf(model).length
        ? `${peakLabel(model)}<div class="beside">${memoryChart(model, width - beside, height - 30)}${peakList(model)}</div>`
        : '<p class="hint">The function has no intermediate results.</p>';
    } else if (state.tab === "timeline") {
      element.innerHTML = timelineChart(model, width, height, state.zoom);
    } else if (state.tab === "layers") {
      element.innerHTML = layersTable(this.models, model, state.depth);
    } else {
      element.innerHTML = stepsTable(model, state.sort);
    }
    Object.assign(element, { scrollTop, scrollLeft });
  }

  // -------------------------------------------------------------- the address

  _toAddress() {
    const { f, pass, node, buffer, tab, open } = this.state;
    const parts = { f: f || "", pass: pass < 0 ? "" : pass, node: buffer ? "" : node || "", buffer: buffer || "", tab: tab === "memory" ? "" : tab, open: [...open].join(",") };
    const given = Object.entries(parts).filter(([, value]) => value !== "");
    this.address = given.length ? `#${given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}` : "#";
    if (location.hash !== this.address) history.replaceState(null, "", this.address);
  }

  _fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const number = (name, least, most, other) => {
      const value = Number.parseInt(given.get(name), 10);
      return value >= least && value <= most ? value : other;
    };
    const { state } = this;
    state.f = number("f", 0, this.models.length - 1, 0);
    state.pass = number("pass", 0, this.model.last, -1);
    state.buffer = number("buffer", 1, this.model.buffers.length, 0);
    const node = number("node", 1, Number.MAX_SAFE_INTEGER, 0);
    state.node = this.model.nodes.has(node) ? node : 0;
    state.tab = TABS.includes(given.get("tab")) ? given.get("tab") : "memory";
    state.open = new Set((given.get("open") ?? "").split(",").filter(Boolean));
  }

  // -------------------------------------------------------------- search

  search(text) {
    const found = nodesWith(this.model, this.k, text);
    $("#found ol").innerHTML = foundItems(this.model, found);
    $("#found p").textContent = foundLabel(found);
    $("#found").hidden = !text.trim();
  }

  // -------------------------------------------------------------- input

  _listen() {
    const on = (selector, act) => $(selector).addEventListener("click", (event) => this.keepFocus(() => act(event)));
    on("#passes", (event) => {
      const button = event.target.closest("[data-pass]");
      if (button) this.pickPass(Number(button.dataset.pass));
    });
    $("#function").addEventListener("change", (event) => this.pickFunction(Number(event.target.value)));
    on("#tabs", (event) => {
      const { tab, zoom, depth } = event.target.dataset;
      if (tab) this.state.tab = tab;
      if (zoom) this.state.zoom = Math.min(64, Math.max(1, this.state.zoom * Number(zoom)));
      if (depth) this.state.depth = Math.min(9, Math.max(1, this.state.depth + Number(depth)));
      this._drawBelow();
      this._toAddress();
    });
    for (const selector of ["#details", "#below", "#found"]) on(selector, (event) => this._follow(event));
    $("#search").addEventListener("input", (event) => this.search(event.target.value));
    $("#search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") $("#found .first")?.click();
    });
    on("#dark", () => this.dark());
    on("#help", () => this.help());
    document.addEventListener("keydown", (event) => this._key(event));
    window.addEventListener("hashchange", () => {
      if (location.hash === this.address) return;
      this._fromAddress();
      this.draw();
      if (this.state.node) this.graph.scrollTo(this.state.node);
    });
    let waiting = 0;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.draw(), 60);
    });
    $("#keys").innerHTML = `<h2 id="keys-title">Keys</h2><dl>${KEYS.map(([key, what]) => `<dt><kbd>${escape(key)}</kbd></dt><dd>${what}</dd>`).join("")}</dl><label><input type="checkbox" id="shortcuts" checked> single keys act</label><form method="dialog"><button>Close</button></form>`;
  }

  /** Act, and if the focused element was redrawn, focus its replacement. */
  keepFocus(act) {
    const focused = document.activeElement;
    const within = focused?.closest("#pipeline, #graph, #changes, #details, #below");
    const given = within && focused !== within ? Object.entries(focused.dataset) : [];
    act();
    if (!given.length || focused.isConnected) return;
    const same = given.map(([name, value]) => `[data-${name}="${CSS.escape(value)}"]`).join("");
    const [at, again] = [within.hidden ? $("#details") : within, within.querySelector(`button${same}`)];
    (again && !within.hidden ? again : at).focus({ preventScroll: true });
  }

  _follow(event) {
    const target = event.target.closest("[data-id], [data-buffer], [data-step], [data-layer], [data-sort]");
    if (!target) return;
    const { id, buffer, step, layer, sort } = target.dataset;
    if (buffer) this.pickBuffer(Number(buffer));
    else if (id) this.pick(Number(id));
    else if (step) this.pick(this.model.steps[Number(step)].node);
    else if (sort) this.sort(Number(sort));
    else if (layer !== undefined) this.goTo(layer);
    if (target.closest("#found")) this.closeSearch();
  }

  sort(column) {
    const { sort } = this.state;
    this.state.sort = Math.abs(sort) === column ? -sort : column > 4 ? -column : column;
    this._drawBelow();
  }

  goTo(layer) {
    if (this.state.pass > 0) this.state.pass = -1;
    const names = layer.split(".").filter(Boolean);
    names.forEach((_, i) => this.state.open.add(names.slice(0, i + 1).join(".")));
    this._drawPipeline();
    this._drawMiddle();
    const row = this.graph.rows.layerRow.get(layer);
    $("#graph").scrollTop = row ? row.y - 40 : 0;
    this._toAddress();
  }

  closeSearch() {
    $("#found").hidden = true;
    $("#search").blur();
  }

  openAll(all) {
    const { model, state } = this;
    const item = itemsOf(model.snapshot(this.k)).get(model.snapshot(this.k).outermost(state.node));
    if (all && item?.layer && !state.open.has(item.layer)) return this._reveal(state.node);
    state.open = new Set(all ? this._paths() : []);
    this._drawMiddle();
    return this._toAddress();
  }

  _paths() {
    const paths = [];
    const visit = (layer) => {
      if (layer.path) paths.push(layer.path);
      layer.layers.forEach(visit);
    };
    visit(this.graph.rows.root);
    return paths;
  }

  dark() {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  }

  help() {
    $("#keys").showModal();
  }

  _next(by) {
    const now = this.model.step(this.state.node);
    const steps = this.model.steps;
    const next = now === undefined ? 0 : Math.max(0, Math.min(steps.length - 1, now + by));
    this.pick(steps[next].node);
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if ($("#keys").open) return;
    if (event.key === "Escape") {
      Object.assign(this.state, { node: 0, buffer: 0 });
      this.closeSearch();
      this._picked();
      return;
    }
    if (event.target.matches("input, select") || !$("#shortcuts").checked) return;
    const passes = this.model.last + 1;
    const at = (this.state.pass + passes + 1) % (passes + 1); // the last is "what runs"
    const actions = {
      "/": () => $("#search").focus(),
      "[": () => this.pickPass(this.state.pass < 0 ? passes - 1 : at - 1),
      "]": () => this.pickPass(this.state.pass < 0 || this.state.pass === passes - 1 ? -1 : this.state.pass + 1),
      p: () => this._next(-1),
      n: () => this._next(1),
      o: () => this.openAll(true),
      c: () => this.openAll(false),
      b: () => {
        document.body.classList.toggle("low");
        this.draw();
      },
      d: () => this.dark(),
      "?": () => this.help(),
    };
    for (const [i, tab] of TABS.entries()) {
      actions[i + 1] = () => {
        this.state.tab = tab;
        this._drawBelow();
        this._toAddress();
      };
    }
    if (!actions[event.key]) return;
    event.preventDefault();
    this.keepFocus(actions[event.key]);
  }
}

load().then(
  (models) => {
    window.page = new Page(models);
    document.body.dataset.ready = Math.round(performance.now()); // milliseconds since navigation
  },
  (error) => {
    $("#details").textContent = `The page cannot be read: ${error}`;
  },
);
