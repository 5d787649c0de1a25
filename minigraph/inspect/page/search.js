/* The search: the nodes that have all words in what is known of them, and how they are listed. */

const RESULTS_SHOWN = 60; // at most

/** Return the nodes with all words of a text; those of stage `k` come first. */
function nodesWith(model, k, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  const now = model.snapshot(k).entries;
  const found = [...model.nodes.values()].filter((node) => {
    const known = node.kind === "constant" ? "" : textOf(model, node);
    return words.every((word) => known.includes(word));
  });
  return found.sort((a, b) => now.has(b.id) - now.has(a.id) || a.order - b.order);
}

function textOf(model, node) {
  const step = model.steps[model.stepOf.get(node.id)];
  const kernel = step ? `${step.kernel} ${model.data.kernels[step.generated]?.name ?? ""}` : "";
  const name = node.kind === "box" ? boxName(node) : node.name;
  return `${name} ${node.layer} ${node.line} ${node.role} ${node.results[0]} ${kernel}`.toLowerCase();
}

function foundItems(model, found) {
  const lines = found.slice(0, RESULTS_SHOWN).map((node, i) => {
    const removed = model.removedAt.get(node.id);
    const gone = removed === undefined ? "" : `, gone after ${model.stages[removed].name}`;
    return `<li><button data-id="${node.id}" class="${i ? "" : "first"}"><i class="dot ${node.role}"></i>${escape(model.label(node.id))}<small>${escape(node.results[0] ?? "")}${escape(gone)}</small></button></li>`;
  });
  return lines.join("");
}

function foundLabel(found) {
  const shown = found.length > RESULTS_SHOWN ? `, ${RESULTS_SHOWN} shown` : "";
  return `${found.length ? plural(found.length, "result") : "nothing found"}${shown}`;
}
