/* Every collective: bytes, axes, line of code, and what the compiler made of it. */

const STATUS = {
  made: ["✓", "as planned"],
  merged: ["✓", "with another"],
  different: ["≠", "otherwise"],
  missing: ["✗", "not made"],
};

function Status({ status: [status, text] }) {
  if (!status) return html`<span class="faint">not audited</span>`;
  const [sign, words] = STATUS[status];
  return html`<span class=${`status status-${status}`} title=${text}><span aria-hidden="true">${sign}</span> ${words}</span>`;
}

function collectiveColumns(model, costs) {
  const blocks = Object.keys(model.data.blocks);
  const link = (one) => {
    const tensor = model.tensorOf(one);
    return tensor >= 0 ? html`<${TensorLink} model=${model} tensor=${tensor}>${one.tensor}<//>` : one.tensor;
  };
  return [
    { key: "phase", title: "Phase", sort: (one) => model.phases.indexOf(one.phase), cell: (one) => html`<${PhaseBadge} phase=${one.phase} />` },
    { key: "kind", title: "Collective", sort: (one) => one.kind, cell: (one) => html`<b>${one.kind}</b>` },
    { key: "axes", title: "Over", kind: "whole", sort: (one) => one.axes.join(), cell: (one) => html`<${AxisChips} model=${model} axes=${one.axes} />${one.hop ? ` ${one.hop}` : ""}` },
    { key: "tensor", title: "Tensor", kind: blocks.length ? "name short" : "name", sort: (one) => one.tensor, cell: link },
    { key: "bytes", title: "Bytes × times", number: true, sort: (one) => one.bytes, cell: (one) => `${formatBytes(one.bytes)} × ${formatNumber(one.times)}${one.open ? " per iteration" : ""}` },
    { key: "sent", title: "Sent", number: true, sort: (one) => one.wire * one.times, cell: (one) => formatBytes(one.wire * one.times) },
    // Of hosts and slices the slower links: a table with both would not fit.
    ...blocks.slice(-1).map((block) => ({ key: block, title: `Leaves ${block}`, number: true, sort: (one) => one[block] * one.times, cell: (one) => formatBytes(one[block] * one.times) })),
    { key: "seconds", title: "Time", number: true, sort: (one) => costs.collectiveSeconds(one.i), cell: (one) => (one.phase === "init" ? "–" : formatSeconds(costs.collectiveSeconds(one.i))) },
    { key: "line", title: "Line", sort: (one) => model.lineText(one.line), cell: (one) => html`<${LineLink} model=${model} line=${one.line} />` },
    ...(model.data.compiled ? [] : [{
      key: "status", title: "Made", sort: (one) => one.status?.[0] || "",
      cell: (one) => (one.status ? html`<${Status} status=${one.status} />` : html`<span class="faint" title="this report has no audit">planned</span>`),
    }]),
  ];
}

function Collectives({ model, costs, query }) {
  const [phase, setPhase] = useState("");
  const [kind, setKind] = useState("");
  const [axis, setAxis] = useState("");
  const all = useMemo(() => model.collectives().map((one) => ({ ...one, key: one.i })), [model]);
  const kinds = [...new Set(all.map((one) => one.kind))].sort();
  const rows = useMemo(() => {
    const matches = matcher(query);
    const number = model.axes.findIndex((one) => one.name === axis);
    return all.filter((one) => (!phase || one.phase === phase) && (!kind || one.kind === kind)
      && (!axis || one.axes.includes(number))
      && matches(`${one.tensor} ${one.kind} ${one.scope} ${model.lineText(one.line)}`.toLowerCase()));
  }, [all, query, phase, kind, axis]);
  const { audit } = model.data;
  return html`<div class="controls">
      <${Choice} label="Phase" name=${`collectives-${model.letter}`} value=${phase} options=${phaseOptions(model, all)} onChange=${setPhase} />
      <${Select} label="Kind" value=${kind} options=${[["", "any"], ...kinds.map((one) => [one, one])]} onChange=${setKind} />
      <${Select} label="Over" value=${axis} options=${axisOptions(model)} onChange=${setAxis} />
    </div>
    <${Timeline} model=${model} costs=${costs} phase=${phase} />
    <p class="faint" role="status">${plural(rows.length, "collective")}, ${formatBytes(sum(rows.map((one) => one.wire * one.times)))} sent by a device${query ? `, with “${query}”` : ""}</p>
    ${audit && html`<${AuditSummary} audit=${audit} />`}
    ${rows.length > 0 && html`<${SortedTable} caption=${`Collectives of plan ${model.letter}`} columns=${collectiveColumns(model, costs)} rows=${rows} start=${["", 1]} most=${20} />`}`;
}

function AuditSummary({ audit }) {
  const made = audit.statuses.filter(([status]) => status === "made" || status === "merged").length;
  return html`<div class=${`audit ${audit.exact ? "good" : "wrong"}`}>
    <p><b>${audit.exact ? "✓ Plan and compiled code agree" : "✗ Plan and compiled code differ"}</b>: ${formatNumber(made)} as planned, ${formatNumber(audit.unplanned.length)} unplanned, ${formatNumber(audit.statuses.filter(([status]) => status === "missing").length)} not made, ${formatNumber(audit.statuses.filter(([status]) => status === "different").length)} different.</p>
    ${(audit.notes.length > 0 || audit.unplanned.length > 0) && html`<ul>
      ${audit.unplanned.map((one) => html`<li>unplanned <b>${one.kind}</b> over ${one.axes.join("+") || "other groups"}, ${formatBytes(one.bytes)}${one.times > 1 ? ` × ${formatNumber(one.times)}` : ""}, from <code>${one.origin}</code></li>`)}
      ${audit.notes.map((note) => html`<li>${note}</li>`)}</ul>`}
  </div>`;
}
