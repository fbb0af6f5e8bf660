/* What the fragment of the page's address says: a tensor, a line of code, or a section. */

const SECTIONS = ["differences", "program", "tensor", "collectives", "schedule", "memory", "roofline", "code"];

function readAddress(models) {
  const text = decodeURIComponent(location.hash.slice(1));
  const [, plan, kind, name] = /^(?:([ab])\/)?(tensor|code)\/(.+)$/.exec(text) || [];
  const model = models[plan === "b" ? 1 : 0];
  if (kind === "tensor" && model) {
    const tensor = model.findTensor(name);
    if (tensor >= 0) return { kind, plan: model.index, tensor };
  }
  if (kind === "code" && model) {
    const [, file, line] = /^(.*?)(?::(\d+))?$/.exec(name);
    if (model.fileByName.has(file)) {
      return { kind, plan: model.index, file: model.fileByName.get(file), line: Number(line || 0) };
    }
  }
  return { kind: "section", plan: 0, section: SECTIONS.includes(text) ? text : "" };
}

const inPlan = (model) => (model.index ? "b/" : "");

const tensorAddress = (model, i) =>
  `#${inPlan(model)}tensor/${encodeURIComponent(model.tensorName(i))}`;

const lineAddress = (model, [file, line]) =>
  `#${inPlan(model)}code/${encodeURIComponent(model.data.files[file].name)}:${line}`;

function useAddress(models) {
  const [address, setAddress] = useState(() => readAddress(models));
  useEffect(() => {
    const change = () => setAddress(readAddress(models));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return address;
}
