/* Numbers as people read them. */

function scaled(value, base, units, digits = 1) {
  let size = Math.abs(value);
  let unit = 0;
  while (size >= base * 0.9995 && unit < units.length - 1) {
    size /= base;
    unit += 1;
  }
  const shown = size >= 100 || Number.isInteger(size) ? 0 : digits;
  return `${value < 0 ? "−" : ""}${size.toFixed(shown)}${units[unit]}`;
}

const formatBytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
const formatFlops = (value) =>
  scaled(value, 1000, [" FLOPs", " kFLOPs", " MFLOPs", " GFLOPs", " TFLOPs", " PFLOPs"]);
const formatRate = (value, unit) =>
  scaled(value, 1000, ["", " k", " M", " G", " T", " P"].map((prefix) => `${prefix || " "}${unit}`));
const formatCount = (value) => scaled(value, 1000, ["", " thousand", " million", " billion", " trillion"]);
// Written out, since toLocaleString takes a tenth of a second when it is first called.
const formatNumber = (value) => String(value).replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");

function formatSeconds(value) {
  if (value === 0) return "0 s";
  const [scale, unit] = [[1, "s"], [1e3, "ms"], [1e6, "µs"], [1e9, "ns"]].find(
    ([scale]) => Math.abs(value) * scale >= 0.9995) || [1e9, "ns"];
  const size = value * scale;
  return `${size.toFixed(Math.abs(size) >= 100 ? 0 : Math.abs(size) >= 10 ? 1 : 2)} ${unit}`;
}

/* From one time to another, with the unit once where it is the same. */
function formatSpan(from, to) {
  const [least, most] = [formatSeconds(from), formatSeconds(to)];
  const [number, unit] = least.split(" ");
  return `${most.endsWith(` ${unit}`) ? number : least} – ${most}`;
}

function formatShare(part, whole) {
  const share = whole ? (100 * part) / whole : 0;
  return share > 0 && share < 0.1 ? "<0.1%" : `${share.toFixed(share < 10 ? 1 : 0)}%`;
}

function formatChange(before, after) {
  if (before === after) return "same";
  if (!before) return "new";
  const ratio = after / before;
  return ratio >= 2 ? `×${ratio.toFixed(ratio < 10 ? 1 : 0)}` : `${ratio >= 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(1)}%`;
}

const plural = (count, noun) => `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
