/* Round steps of a scale from 0 to a largest value. */
function ticks(largest, count) {
  if (!(largest > 0)) return [0];
  const rough = largest / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  return Array.from({ length: Math.floor(largest / step + 1e-9) + 1 }, (_, i) => i * step);
}
