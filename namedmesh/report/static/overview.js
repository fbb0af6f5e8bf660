/* The head of the page: what is planned, for what, and the numbers that decide. */

function facts(model) {
  const { data } = model;
  const step = model.collectives().filter((one) => one.phase !== "init");
  const sent = sum(step.map((one) => one.wire * one.times));
  const runs = sum(step.map((one) => one.times));
  const { cost } = data;
  const { peak } = cost.memory;
  return [
    { key: "seconds", title: "Step, estimated", value: formatSeconds(cost.seconds), note: `on ${cost.target}; ${formatSpan(cost.least, cost.serial)} with perfect overlap – with none`, number: cost.seconds },
    { key: "memory", title: "Peak memory", value: formatBytes(peak), note: `${formatShare(peak, cost.capacity)} of ${formatBytes(cost.capacity)}`, number: peak, full: peak / cost.capacity },
    ...(data.compiled ? [] : [{ key: "weights", title: "Weights", value: formatCount(data.weights), note: `${formatBytes(data.weight_bytes)} on a device`, number: data.weights }]),
    { key: "flops", title: "Work of a device", value: formatFlops(sum(data.flops)), note: data.recomputed < 0.01 ? "in one step" : `in one step, ${formatShare(data.recomputed, 1)} of it computed again`, number: sum(data.flops) },
    { key: "sent", title: "Sent by a device", value: formatBytes(sent), note: "in one step", number: sent },
    ...Object.entries(data.blocks).map(([block, count]) => {
      const crossing = sum(step.map((one) => one[block] * one.times));
      const inside = sent * (model.devices / count);
      return { key: `${block}s`, title: `Leaves a ${block}`, value: formatBytes(crossing), note: `${formatShare(crossing, inside)} of what its devices send`, number: crossing };
    }),
    { key: "collectives", title: "Collectives", value: formatNumber(runs), note: `runs of ${formatNumber(step.length)} in the ${data.compiled ? "code" : "plan"}${data.audit ? (data.audit.exact ? ", all made as planned" : ", not all made as planned") : ""}`, number: runs },
  ];
}

function Overview({ model }) {
  const { data } = model;
  const blocks = Object.entries(data.blocks).map(([name, count]) => plural(count, name)).join(" in ");
  const remarks = [
    ...data.warnings.map((text) => ["Warning", text]),
    ...data.notes.map((text) => ["Note", text]),
    ...data.decisions.map(([text, names]) => ["Decision", names.length ? `${text} (${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""})` : text]),
  ];
  return html`<div class="overview">
    <dl class="setting">
      <div><dt>mesh</dt><dd>${model.axes.map((axis) => html`<span key=${axis.name}><${AxisChip} axis=${axis} /> ${formatNumber(axis.size)}</span>`)}
        <span class="faint">${plural(model.devices, "device")}${blocks && ` on ${blocks}`}</span></dd></div>
      <div><dt>layout</dt><dd><code>${data.layout || "nothing is split"}</code></dd></div>
      ${data.params && html`<div><dt>parameters at rest</dt><dd><code>${data.params}</code></dd></div>`}
    </dl>
    <ul class="facts">${facts(model).map((fact) => html`<li key=${fact.key}>
      <span class="fact-title">${fact.title}</span><strong>${fact.value}</strong>
      ${fact.full ? html`<span class=${`gauge ${fact.full > 1 ? "over" : ""}`} aria-hidden="true"><span style=${{ width: `${Math.min(100, 100 * fact.full)}%` }} /></span>` : ""}
      <span class="faint">${fact.note}${fact.full > 1 ? html`, <b class="bad">does not fit</b>` : ""}</span></li>`)}</ul>
    ${remarks.length > 0 && html`<details class="remarks" open=${data.warnings.length > 0}>
      <summary>${plural(remarks.length, "remark")} on this ${data.compiled ? "step" : "plan"}</summary>
      <ul>${remarks.map(([kind, text]) => html`<li><b>${kind}:</b> ${text}</li>`)}</ul></details>`}
  </div>`;
}
