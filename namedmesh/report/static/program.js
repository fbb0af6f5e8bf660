/* The program as scopes that unfold to tensors. */

const CROWD = 80; // in a scope with more tensors than that, those of one file make a group

function newGroup(name, path, kind) {
  return { name, path, kind, groups: new Map(), tensors: [], count: 0, seconds: 0, sent: 0, split: new Map() };
}

/* Scopes with the tensors that pass a filter, and what they add up to. */
function groupTensors(model, costs, keep) {
  const root = newGroup("", "", "scope");
  const seen = new Set();
  for (let i = 0; i < model.tensorCount; i++) {
    if (!keep(i)) continue;
    const op = model.data.tensors.op[i];
    const scope = model.text(model.data.ops.scope[op]);
    const chain = [root];
    let path = "";
    for (const part of scope ? scope.split("/") : []) {
      path = path ? `${path}/${part}` : part;
      const { groups } = chain[chain.length - 1];
      if (!groups.has(part)) groups.set(part, newGroup(part, path, "scope"));
      chain.push(groups.get(part));
    }
    chain[chain.length - 1].tensors.push(i);
    const axes = model.heldAxes(model.place(model.data.tensors.place[i])).map((axis) => axis.number);
    const first = !seen.has(op);
    seen.add(op);
    const moved = first ? model.collectivesOf.get(op) || [] : [];
    const seconds = first ? costs.opSeconds(op) + sum(moved.map((one) => costs.collectiveSeconds(one))) : 0;
    const sent = sum(moved.map((one) => model.data.collectives.wire[one] * model.data.collectives.times[one]));
    for (const group of chain) {
      group.count += 1;
      group.seconds += seconds;
      group.sent += sent;
      for (const axis of axes.length ? axes : [-1]) {
        group.split.set(axis, (group.split.get(axis) || 0) + 1 / Math.max(1, axes.length));
      }
    }
  }
  return root;
}

/* Of a crowded scope, the tensors by the file that makes them. */
function subgroups(model, group) {
  if (group.kind !== "scope" || group.tensors.length <= CROWD) return null;
  const files = new Map();
  for (const i of group.tensors) pushTo(files, model.data.ops.line[model.data.tensors.op[i]][0], i);
  if (files.size < 2) return null;
  return [...files].map(([file, tensors]) => {
    const { name } = model.data.files[file];
    return { ...newGroup(name, `${group.path}|${name}`, "file"), tensors, count: tensors.length };
  });
}

function SplitBar({ model, group }) {
  const parts = [...group.split].sort((one, other) => (one[0] < 0) - (other[0] < 0) || one[0] - other[0]);
  const words = parts.map(([axis, count]) => `${axis < 0 ? "not split" : model.axes[axis].name} ${formatShare(count, group.count)}`);
  return html`<span class="split" role="img" aria-label=${`tensors by axis: ${words.join(", ")}`} title=${words.join(", ")}>
    ${parts.map(([axis, count]) => html`<span style=${{ flexGrow: count, background: axis < 0 ? "var(--unsplit)" : axisColour(axis) }} />`)}</span>`;
}

function TensorRow({ model, i, selected }) {
  const tensor = model.tensor(i);
  const op = model.op(tensor.op);
  const looped = model.data.ops.loop[tensor.op] >= 0;
  return html`<li class=${`tensor-row ${selected ? "selected" : ""}`}>
    <a href=${tensorAddress(model, i)} aria-current=${selected ? "true" : null}>${tensor.label}</a>
    <span class="op-name">${op.name}${looped ? html` <span title="inside a loop" aria-label="inside a loop">↻</span>` : ""}</span>
    <${Place} model=${model} place=${tensor.place} />
    <span class="tail"><${PhaseBadge} phase=${op.phase} />
      <span class="bytes">${tensor.free ? html`<span title="every reader makes it where it needs it">free</span>` : formatBytes(tensor.bytes)}</span></span>
  </li>`;
}

function Group({ model, costs, group, depth, open, toggle, selected }) {
  const unfolded = open(group, depth);
  const inner = unfolded ? subgroups(model, group) : null;
  const [some, more] = useSome(inner ? [] : group.tensors, CROWD, [group]);
  const shared = { model, costs, depth: depth + 1, open, toggle, selected };
  return html`<li class="group">
    <button type="button" class="group-head" aria-expanded=${unfolded} onClick=${() => toggle(group, !unfolded)}>
      <span class="twist" aria-hidden="true">${unfolded ? "▾" : "▸"}</span>
      <span class="group-name">${group.name || "outside all scopes"}</span>
      <span class="tail faint">${group.kind === "scope" && html`<${SplitBar} model=${model} group=${group} />`}
        <span class="cell count">${plural(group.count, "tensor")}</span>
        ${group.kind === "scope" && html`<span class="cell">${formatSeconds(group.seconds)}</span>`}
        ${group.kind === "scope" && html`<span class="cell">${group.sent ? `${formatBytes(group.sent)} sent` : "–"}</span>`}</span>
    </button>
    ${unfolded && html`<ul>
      ${[...group.groups.values(), ...(inner || [])].map((one) => html`<${Group} key=${one.path} group=${one} ...${shared} />`)}
      ${some.map((i) => html`<${TensorRow} key=${i} model=${model} i=${i} selected=${i === selected} />`)}
      ${more && html`<li>${more}</li>`}</ul>`}
  </li>`;
}

function Program({ model, costs, query, selected }) {
  const [phase, setPhase] = useState("");
  const [axis, setAxis] = useState("");
  const [everything, setEverything] = useState(false);
  const [toggled, setToggled] = useState(new Map());
  const texts = useMemo(() => Array.from({ length: model.tensorCount }, (_, i) => searchText(model, i)), [model]);
  const root = useMemo(() => {
    const matches = matcher(query);
    const wanted = model.axes.find((one) => one.name === axis);
    return groupTensors(model, costs, (i) => {
      if (!everything && !model.data.tensors.listed[i]) return false;
      if (phase && model.phases[model.data.ops.phase[model.data.tensors.op[i]]] !== phase) return false;
      if (axis) {
        const held = model.heldAxes(model.place(model.data.tensors.place[i]));
        if (wanted ? !held.includes(wanted) : held.length) return false;
      }
      return matches(texts[i]);
    });
  }, [model, query, phase, axis, everything]);
  const few = Boolean(query) && root.count <= 200;
  const chosen = selected >= 0 ? model.text(model.data.ops.scope[model.data.tensors.op[selected]]) : null;
  const open = (group, depth) => {
    if (toggled.has(group.path)) return toggled.get(group.path);
    if (few) return true;
    if (group.kind === "file" && group.tensors.includes(selected)) return true;
    if (chosen !== null && group.kind === "scope" && group.path && `${chosen}/`.startsWith(`${group.path}/`)) return true;
    return root.count <= 40;
  };
  const toggle = (group, unfolded) => setToggled(new Map(toggled).set(group.path, unfolded));
  const outside = { ...newGroup("", "|", "scope"), tensors: root.tensors, count: root.tensors.length };
  const top = [...root.groups.values()];
  if (root.tensors.length) top.push(withTotals(model, costs, outside));
  const step = model.phases.filter((one) => one !== "init").map((one) => [one, one]);
  return html`<div class="controls">
      <${Choice} label="Phase" name=${`phase-${model.letter}`} value=${phase} options=${[["", "all"], ...step]} onChange=${setPhase} />
      <${Select} label="Split over" value=${axis} options=${[...axisOptions(model), ["none", "no axis"]]} onChange=${setAxis} />
      <label class="check"><input type="checkbox" checked=${everything} onChange=${(event) => setEverything(event.target.checked)} />
        scalars and inner values too</label>
    </div>
    <p class="faint" role="status">${plural(root.count, "tensor")}${query ? ` with “${query}”` : ""}</p>
    ${root.count ? html`<ul class="tree">${top.map((group) => html`
      <${Group} key=${group.path} model=${model} costs=${costs} group=${group} depth=${0} open=${open} toggle=${toggle} selected=${selected} />`)}</ul>`
      : html`<p>No tensor passes these filters.</p>`}`;
}

function withTotals(model, costs, group) {
  const inside = new Set(group.tensors);
  const { seconds, sent, split } = groupTensors(model, costs, (i) => inside.has(i));
  return { ...group, seconds, sent, split };
}

function searchText(model, i) {
  const { tensors, ops } = model.data;
  const op = tensors.op[i];
  const dims = model.place(tensors.place[i]).dims.map((dim) => dim.name).join(" ");
  return [model.text(tensors.label[i]), model.text(ops.name[op]), model.text(ops.scope[op]), model.lineText(ops.line[op]), dims].join(" ").toLowerCase();
}
