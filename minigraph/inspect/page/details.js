/* The details of the selection. */

/** Return the details of a node, as HTML. */
function details(model, id, k) {
  const node = model.nodes.get(id);
  const snapshot = model.snapshot(k);
  const entry = snapshot.entries.get(id);
  const inside = entry && node.kind === "box" ? snapshot.inside(id) : [];
  const number = model.step(id);
  const parts = [
    `<h2><i class="dot ${node.role}"></i>${escape(node.kind === "box" ? boxName(node) : node.name)}</h2>`,
    rows([
      ["op", node.text && `<code>${escape(node.text)}</code>`],
      ["results", node.results.slice(0, 6).map(escape).join("<br>") + (node.results.length > 6 ? `<br>and ${node.results.length - 6} more` : "")],
      ["layer", escape(node.layer || "none")],
      ["line", node.line && `<code>${escape(node.line)}</code>`],
      ["part of", node.kind === "op" || node.kind === "box" ? ROLE_WORDS[node.role] : node.kind],
      ["since", escape(model.stages[model.addedAt.get(id)].name)],
      ["until", removalOf(model, id)],
    ]),
  ];
  if (entry?.box) {
    parts.push(heading("in"), links(model, [entry.box]));
  }
  if (inside.length) {
    parts.push(heading(`computes ${plural(inside.length, "op")}`), links(model, inside, 24));
    const lines = [...new Set(inside.map((x) => model.nodes.get(x).line))];
    parts.push(heading("made at"), `<p>${lines.slice(0, 8).map((l) => `<code>${escape(l)}</code>`).join("<br>")}</p>`);
  }
  if (number !== undefined) parts.push(stepDetails(model, number));
  if (entry?.reads.length && node.kind !== "box") parts.push(heading("reads"), links(model, entry.reads));
  const readers = snapshot.readers.get(id) ?? [];
  if (readers.length) parts.push(heading("is read by"), links(model, readers));
  parts.push(stopDetails(model, id, inside));
  if (number !== undefined) parts.push(algorithmDetails(model, number), textDetails(model, number));
  return parts.join("");
}

const ROLE_WORDS = {
  forward: "the forward pass",
  backward: "the backward pass: gradients",
  update: "the update of parameters",
};

function rows(pairs) {
  const shown = pairs.filter(([, value]) => value);
  return `<dl>${shown.map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("")}</dl>`;
}

function heading(text) {
  return `<h3>${text}</h3>`;
}

function links(model, ids, most = 12) {
  const all = [...new Set(ids)];
  const shown = all.slice(0, most).map((id) => `<button class="link" data-id="${id}">${escape(model.label(id))}</button>`);
  return `<p class="links">${shown.join("")}${all.length > most ? `<span>and ${all.length - most} more</span>` : ""}</p>`;
}

/** Return the pass that removed a node, and its replacements, as HTML. */
function removalOf(model, id) {
  if (!model.removedAt.has(id)) return "";
  const pass = escape(model.stages[model.removedAt.get(id)].name);
  const replacements = model.replacedBy.get(id);
  const now = replacements.length ? `, replaced by${links(model, replacements)}` : ": no node reads it";
  return `removed by <b>${pass}</b>${now}`;
}

function stepDetails(model, number) {
  const step = model.steps[number];
  const spent = model.seconds[number];
  const memory = (ids) =>
    ids
      .slice(0, 8)
      .map((id) => {
        const buffer = model.buffers[id - 1];
        return `<button class="link" data-buffer="${id}">${escape(buffer.space)} ${bytes(buffer.bytes)}</button>`;
      })
      .join("") + (ids.length > 8 ? `<span>and ${ids.length - 8} more</span>` : "");
  return (
    heading(`step ${number} of ${model.steps.length}`) +
    rows([
      ["kernel", `<code>${escape(step.kernel)}</code>`],
      ["time", model.profiled && `${time(spent)}, ${percent(spent / model.total)} of the call`],
      ["bytes", `${bytes(step.bytes)} at least`],
      ["FLOPs", step.flops && flops(step.flops)],
      ["roofline", `${time(step.roofline)} (estimate), limited by ${step.bytes / model.bandwidth >= step.flops / model.peak ? "memory" : "arithmetic"}`],
      ["of the roofline", model.profiled && spent > 0 && percent(step.roofline / spent)],
      ["in NumPy", step.numpy && escape(step.numpy)],
      ["reads", step.reads.length && `<span class="links">${memory(step.reads)}</span>`],
      ["writes", step.writes.length && `<span class="links">${memory(step.writes)}</span>`],
    ])
  );
}

/** Return why a node, or the nodes in a box, were not fused with neighbours, as HTML. */
function stopDetails(model, id, inside) {
  const members = new Set([id, ...inside]);
  const found = [...members].flatMap((x) => model.stops.get(x) ?? []);
  const outside = [...new Set(found)].filter((s) => !(members.has(s.producer) && members.has(s.consumer)));
  if (!outside.length) return "";
  const items = outside.slice(0, 12).map((stop) => {
    const end = (which, name) => (which ? `<button class="link" data-id="${which}">${escape(model.label(which))}</button>` : `<b>${escape(name)}</b>`);
    return `<li>${end(stop.producer, stop.names[0])} → ${end(stop.consumer, stop.names[1])}<br>${escape(stop.reason)}</li>`;
  });
  const more = outside.length > 12 ? `<li>and ${outside.length - 12} more</li>` : "";
  return `${heading("not fused with its neighbours")}<ul class="stops">${items.join("")}${more}</ul>`;
}

function algorithmDetails(model, number) {
  const { algorithm } = model.steps[number];
  if (algorithm === undefined || algorithm === null) return "";
  const { subject, name, layout, origin, candidates } = model.data.algorithms[algorithm];
  const layouts = layout.split(" ");
  const sorted = [...candidates].sort((a, b) => (a.seconds ?? Infinity) - (b.seconds ?? Infinity));
  const slowest = Math.max(...candidates.map((r) => r.seconds ?? 0));
  const isChosen = (candidate) => candidate.name === name && candidate.layouts.join() === layouts.join();
  const lines = sorted.map((candidate) => {
    const chosen = isChosen(candidate);
    const bar = candidate.seconds ? `<i class="bar" style="width:${(100 * candidate.seconds) / slowest}%"></i>` : "";
    const said = candidate.error ? escape(candidate.error) : time(candidate.seconds ?? 0);
    return `<tr class="${chosen ? "chosen" : ""}"><td>${chosen ? "✓ " : ""}${escape(candidate.name)}<small>${escape(candidate.layouts.join(" → "))}</small></td><td>${said}${bar}</td><td>${bytes(candidate.workspace)}</td></tr>`;
  });
  const table = lines.length
    ? `<table class="rivals" aria-label="candidates"><tr><th scope="col">algorithm, layouts</th><th scope="col">time</th><th scope="col">workspace</th></tr>${lines.join("")}</table>`
    : "";
  const why = sorted[0]?.seconds && !isChosen(sorted[0]) ? NOT_THE_FASTEST : "";
  return `${heading(`algorithm: ${plural(candidates.length, "candidate")}, ${escape(origin)}`)}<p><code>${escape(subject)}</code></p><p>Chosen: <b>${escape(name)}</b> in ${escape(layouts.join(" → "))}</p>${table}${why}`;
}

const NOT_THE_FASTEST =
  '<p class="hint">Not the fastest alone: layouts are chosen for the whole network, with the reorders between them; differences within the noise do not count; options may rule candidates out.</p>';

function textDetails(model, number) {
  const { generated } = model.steps[number];
  if (generated === undefined || generated === null) return "";
  const { name, source } = model.data.kernels[generated];
  const language = model.data.device.startsWith("cuda") ? "CUDA" : "C";
  return `<details open><summary>${language} of <code>${escape(name)}</code></summary><pre tabindex="0">${coloured(source)}</pre></details>`;
}

const WORDS = /(\/\*[\s\S]*?\*\/|\/\/[^\n]*)|("(?:[^"\\\n]|\\.)*")|\b(for|if|else|return|while|const|static|int|float|double|char|void|int64_t|restrict|unsigned|long|bool|extern|struct)\b|\b(\d[\w.]*)\b/g;

function coloured(text) {
  let html = "";
  let end = 0;
  for (const match of text.matchAll(WORDS)) {
    const kind = ["comment", "string", "word", "number"][match.slice(1).findIndex((m) => m !== undefined)];
    html += `${escape(text.slice(end, match.index))}<span class="${kind}">${escape(match[0])}</span>`;
    end = match.index + match[0].length;
  }
  return html + escape(text.slice(end));
}

/** Return the details of a buffer, as HTML. */
function bufferDetails(model, id) {
  const buffer = model.buffers[id - 1];
  const using = (list) => model.steps.flatMap((step, i) => (step[list].includes(id) && step.loop === undefined ? [i] : []));
  const step = (i) => (model.steps[i] ? `<button class="link" data-step="${i}">step ${i}: ${escape(model.label(model.steps[i].node))}</button>` : "the end of the call");
  const firstSteps = (list) => list.slice(0, 10).map(step).join("") + (list.length > 10 ? `<span>and ${list.length - 10} more</span>` : "");
  return (
    `<h2>buffer ${id}</h2>` +
    rows([
      ["holds", buffer.node ? links(model, [buffer.node]) : escape(model.contentsOf(buffer))],
      ["where", escape(buffer.space)],
      ["size", bytes(buffer.bytes)],
      ["offset", buffer.space === "arena" && buffer.offset.toLocaleString("en")],
      ["lives", buffer.space === "arena" && `from step ${buffer.first} to step ${buffer.last}`],
      ["written by", `<span class="links">${firstSteps(using("writes"))}</span>`],
      ["read by", `<span class="links">${firstSteps(using("reads"))}</span>`],
      ["reused by", buffer.successor && `<button class="link" data-buffer="${buffer.successor}">buffer ${buffer.successor}</button>, which is written in place`],
    ])
  );
}

/** Return the summary of a function, as HTML; it is shown if nothing is selected. */
function overview(model) {
  const { data } = model;
  const kernels = new Map();
  for (const step of data.steps) {
    const maker = step.kernel.split(" ")[0];
    kernels.set(maker, (kernels.get(maker) ?? 0) + 1);
  }
  const sum = (key) => model.steps.reduce((total, step) => total + (step[key] ?? 0), 0);
  const options = Object.entries(data.options).map(([name, value]) => `<tr><th scope="row">${escape(name)}</th><td>${escape(JSON.stringify(value))}</td></tr>`);
  return (
    `<h2>${escape(data.title)}</h2>` +
    rows([
      ["device", escape(data.device)],
      ["steps", `${data.steps.length}: ${[...kernels].map(([maker, n]) => `${n} by ${escape(maker)}`).join(", ")}`],
      ["a call", model.profiled ? `${time(model.total)} in the profile` : "no profile was made"],
      ["moves", bytes(sum("bytes"))],
      ["computes", flops(sum("flops"))],
      ["roofline", `${time(sum("roofline"))} (estimate) at ${(model.bandwidth / 1e9).toFixed(1)} GB/s and ${(model.peak / 1e9).toFixed(0)} GFLOP/s`],
      ["arena", `${bytes(data.memory.arena_bytes)}; ${bytes(data.memory.unplanned_bytes)} without reuse`],
      ["compiled", Object.entries(data.seconds).map(([stage, s]) => `${escape(stage)} ${time(s)}`).join(", ")],
      ["version", escape(data.version)],
    ]) +
    heading("options") +
    `<table class="plain" aria-label="options">${options.join("")}</table><p class="hint">Select an op, a kernel or a buffer. Press <kbd>?</kbd> for the keys.</p>`
  );
}
