/* The page: its head, its sections, one plan or two. */

const THEMES = ["auto", "light", "dark"];

function useTheme() {
  const [theme, setTheme] = useState("auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [theme, setTheme];
}

function Section({ id, title, text, children }) {
  return html`<section id=${id} aria-labelledby=${`${id}-title`}>
    <h2 id=${`${id}-title`}><a href=${`#${id}`}>${title}</a></h2>
    ${text && html`<p class="faint lead">${text}</p>`}
    ${children}</section>`;
}

/* A view for each plan that is shown, side by side where there is room. */
function EachPlan({ shown, view }) {
  if (shown.length === 1) return html`<div class="side">${view(shown[0])}</div>`;
  return html`<div class="pair">${shown.map((entry) => html`<div key=${entry.model.letter} class="side" role="group" aria-label=${`Plan ${entry.model.letter}`}>
    <p class="side-name" aria-hidden="true">Plan ${entry.model.letter}</p>${view(entry)}</div>`)}</div>`;
}

function useSelection(models, address) {
  const [selection, setSelection] = useState(() => ({ plan: 0, tensor: firstTensor(models[0]) }));
  useEffect(() => {
    if (address.kind === "tensor") setSelection({ plan: address.plan, tensor: address.tensor });
  }, [address]);
  return address.kind === "tensor" ? { plan: address.plan, tensor: address.tensor } : selection;
}

/* The tensor of another plan that has the same name there. */
function counterpart(selection, models, model) {
  if (model.index === selection.plan) return selection.tensor;
  const from = models[selection.plan];
  const found = selection.tensor >= 0 ? model.findTensor(from.tensorName(selection.tensor)) : -1;
  const same = found >= 0 && model.tensor(found).label === from.tensor(selection.tensor).label;
  return same ? found : -1;
}

function App({ models, costs, content }) {
  const address = useAddress(models);
  const [theme, setTheme] = useTheme();
  const [query, setQuery] = useState("");
  const [which, setWhich] = useState(models.length > 1 ? "both" : "0");
  const search = useRef(null);
  const selection = useSelection(models, address);
  const entries = models.map((model, i) => ({ model, costs: costs[i] }));
  const shown = which === "both" ? entries : [entries[Number(which)]];
  useEffect(() => {
    const press = (event) => {
      if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      search.current.focus();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  useEffect(() => {
    if (address.kind === "tensor") {
      if (which !== "both" && String(address.plan) !== which) setWhich(String(address.plan));
      const panel = document.getElementById("tensor");
      if (getComputedStyle(panel).position !== "sticky") panel.scrollIntoView({ block: "start" });
      panel.scrollTop = 0;
    } else if (address.section) document.getElementById(address.section)?.scrollIntoView();
  }, [address]);
  const [first] = models;
  const sections = SECTIONS.filter((id) => (id !== "differences" || models.length > 1) && (id !== "schedule" || content.schedule));
  const names = { program: "Program", tensor: "Tensor", collectives: "Collectives", schedule: "Schedule", memory: "Memory", roofline: "Roofline", code: "Source", differences: "Differences" };
  return html`<a class="skip" href="#program">Skip to the program</a>
    <header class="top">
      <div class="title-row"><h1>${first.data.program} <span class="faint">${first.data.compiled ? "as compiled" : "plan"}${models.length > 1 ? "s A and B" : ""}</span></h1>
        <${Choice} label="Colours" name="theme" value=${theme} options=${THEMES.map((one) => [one, one])} onChange=${setTheme} /></div>
      <${EachPlan} shown=${shown} view=${({ model }) => html`<${Overview} model=${model} />`} />
    </header>
    <nav aria-label="Sections"><ul>${sections.map((id) => html`<li key=${id}><a href=${`#${id}`}>${names[id]}</a></li>`)}</ul>
      <div class="tools">${models.length > 1 && html`<${Choice} label="Plans" name="plans" value=${which} options=${[["0", "A"], ["1", "B"], ["both", "both"]]} onChange=${setWhich} />`}
      <label class="search"><span class="hidden">Search tensors, scopes and lines</span>
        <input ref=${search} type="search" value=${query} placeholder="Search tensors, scopes, lines ( / )" onInput=${(event) => setQuery(event.target.value)} /></label></div></nav>
    <main>
      <div class="views">
        ${models.length > 1 && html`<${Section} id="differences" title="Differences" text="From plan A to plan B."><${Differences} models=${models} differences=${content.differences} /><//>`}
        <${Section} id="program" title="Program" text="Scopes unfold to the tensors made in them; colours are mesh axes, and a bar shows which axes a scope's tensors are split over.">
          <${EachPlan} shown=${shown} view=${(one) => html`<${Program} ...${one} query=${query} selected=${counterpart(selection, models, one.model)} />`} /><//>
        <${Section} id="collectives" title="Collectives" text="What devices send each other in one step, in order.">
          <${EachPlan} shown=${shown} view=${(one) => html`<${Collectives} ...${one} query=${query} />`} /><//>
        ${content.schedule && html`<${Section} id="schedule" title="Schedule" text="What the compiler decided: the order of ops, and what runs while collectives are under way."><${ScheduleView} data=${content.schedule} /><//>`}
        <${Section} id="memory" title="Memory" text=${`What one device keeps over the step, ${first.data.compiled ? "as the compiler counts it" : "by the live ranges of tensors"}.`}>
          <${EachPlan} shown=${shown} view=${(one) => html`<${Memory} ...${one} />`} /><//>
        <${Section} id="roofline" title="Roofline" text="Every op against what one device can compute and read.">
          <${EachPlan} shown=${shown} view=${(one) => html`<${Roofline} ...${one} query=${query} />`} /><//>
        <${Section} id="code" title="Source" text="The lines that made the program, with what they cost a device in the margin.">
          <${EachPlan} shown=${shown} view=${(one) => html`<${Code} ...${one} address=${address} />`} /><//>
      </div>
      <aside id="tensor" aria-labelledby="tensor-title">
        <h2 id="tensor-title"><a href="#tensor">Tensor</a></h2>
        ${shown.map(({ model, costs }) => {
          const i = counterpart(selection, models, model);
          return html`<div key=${model.letter}>${shown.length > 1 && html`<p class="side-name">Plan ${model.letter}</p>`}
            ${i >= 0 ? html`<${TensorView} model=${model} costs=${costs} i=${i} />` : html`<p>${shown.length > 1 ? "This plan has no tensor of that name and op." : "Choose a tensor."}</p>`}</div>`;
        })}
      </aside>
    </main>
    <footer class="faint">Made by namedmesh ${content.version}. ${first.data.compiled ? "Memory is counted by the compiler; times are" : first.data.cost.memory.estimated ? "Times and memory are" : "Memory is that of the plan's tensors; times are"} estimates for ${first.data.cost.target}; bytes and collectives are ${first.data.compiled ? "those of the compiled code" : "the plan's own"}.</footer>`;
}

/* The schedule draws itself: a component that gives it a place. */
function ScheduleView({ data }) {
  const place = useRef(null);
  useEffect(() => showSchedule(place.current, data), [data]);
  return html`<div ref=${place}></div>`;
}

const content = JSON.parse(document.getElementById("data").textContent);
const models = content.plans.map((data, i) => new Model(data, i));
const target = document.getElementById("app");
target.textContent = "";
render(html`<${App} models=${models} costs=${models.map((model) => new Costs(model))} content=${content} />`, target);
