/* The source, with what each line costs in the margin. */

const AROUND = 3; // lines without costs that are shown around those with

function Code({ model, costs, address }) {
  const chosen = address.kind === "code" && address.plan === model.index ? address : null;
  const files = useMemo(() => model.data.files.map((file, i) => {
    const entries = [...costs.lines(i).values()];
    return { i, ...file, seconds: sum(entries.map((one) => one.seconds)), tensors: sum(entries.map((one) => one.tensors.length)) };
  }), [model]);
  const own = files.find((file) => !file.layer && file.tensors) || files[0];
  const [picked, setPicked] = useState(own ? own.i : 0);
  const [unfolded, setUnfolded] = useState(new Set());
  useEffect(() => { if (chosen) setPicked(chosen.file); }, [chosen?.file, chosen?.line]);
  const current = files[picked];
  const open = (line) => line && setUnfolded(new Set(unfolded).add(`${picked}:${line}`));
  if (!current) return html`<p>The plan names no file.</p>`;
  const table = costs.lines(picked);
  const largest = Math.max(1e-30, ...[...table.values()].map((entry) => entry.seconds));
  const rows = foldLines(current, table, unfolded, picked, chosen?.line);
  return html`<div class="controls">
      <${Select} label="File" value=${String(picked)} onChange=${(key) => setPicked(Number(key))}
        options=${files.map((file) => [String(file.i), `${file.name}${file.layer ? " (layer)" : ""} – ${formatSeconds(file.seconds)}`])} />
    </div>
    <p class="faint">${current.layer ? "A line of a layer has the costs of the ops that it makes." : "A line has the costs of the ops that it makes, those of layers that it calls included."}</p>
    <div class="scroll code" tabindex="0" role="region" aria-label=${`source of ${current.name}, plan ${model.letter}`}><table>
      <caption class="hidden">${`Source of ${current.name} with costs`}</caption>
      <thead><tr><th scope="col" class="number">Time</th><th scope="col" class="number">Sent</th><th scope="col" class="number">Largest</th><th scope="col" class="number">Line</th><th scope="col">Code</th></tr></thead>
      <tbody>${rows.map((row) => (row.gap
        ? html`<tr key=${`g${row.from}`} class="gap"><td colspan="5"><button type="button" onClick=${() => open(row.from)}>⋯ ${plural(row.to - row.from, "line")}</button></td></tr>`
        : html`<${CodeLine} key=${row.line} model=${model} row=${row} share=${row.entry ? row.entry.seconds / largest : 0} chosen=${chosen?.line === row.line} />`))}</tbody>
    </table></div>`;
}

function CodeLine({ model, row, share, chosen }) {
  const ref = useRef(null);
  const [shown, setShown] = useState(false);
  useEffect(() => { if (chosen && ref.current) ref.current.scrollIntoView({ block: "center" }); }, [chosen]);
  const { entry } = row;
  const many = entry?.tensors.length || 0;
  return html`<tr ref=${ref} class=${`${entry ? "costly" : ""} ${chosen ? "selected" : ""}`}>
      <td class="number heat" style=${{ "--share": `${Math.round(100 * share)}%` }}>${entry?.seconds ? formatSeconds(entry.seconds) : ""}</td>
      <td class="number">${entry?.sent ? formatBytes(entry.sent) : ""}</td>
      <td class="number">${entry?.bytes ? formatBytes(entry.bytes) : ""}</td>
      <td class="number">${many ? html`<button type="button" class="line-number" aria-expanded=${shown} aria-label=${`line ${row.line}: ${plural(many, "tensor")}`} onClick=${() => setShown(!shown)}>${row.line}</button>` : row.line}</td>
      <td><code>${row.text || " "}</code></td></tr>
    ${shown && html`<tr class="made"><td colspan="4" /><td>${entry.tensors.slice(0, 40).map((i) => html`<${TensorLink} model=${model} tensor=${i} />${" "}<span class="faint">${formatBytes(model.data.tensors.bytes[i])}</span>${"  "}`)}${many > 40 ? `and ${many - 40} more` : ""}</td></tr>`}`;
}

/* Lines with costs and some around them; the rest in gaps that unfold. */
function foldLines(file, table, unfolded, number, wanted) {
  const count = Math.max(file.lines.length, ...table.keys());
  const near = new Set();
  for (const line of wanted ? [...table.keys(), wanted] : table.keys()) {
    for (let i = line - AROUND; i <= line + AROUND; i++) near.add(i);
  }
  const rows = [];
  const add = (line) => rows.push({ line, text: file.lines[line - 1] || "", entry: table.get(line) });
  let line = 1;
  while (line <= count) {
    let to = line;
    while (to <= count && !near.has(to)) to += 1;
    const folded = to - line > 2 && !unfolded.has(`${number}:${line}`);
    if (folded) rows.push({ gap: true, from: line, to });
    else for (let i = line; i < to; i++) add(i);
    if (to <= count) add(to);
    line = to + 1;
  }
  return rows;
}
