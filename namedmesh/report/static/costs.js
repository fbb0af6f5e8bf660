/* What a plan's estimate says, by op, scope and line. */

class Costs {
  constructor(model) {
    this.model = model;
    const data = model.data.cost;
    this.data = data;
    this.byOp = new Map();
    data.ops.op.forEach((op, i) => {
      const [flops, bytes, seconds, times] = ["flops", "bytes", "seconds", "times"].map(
        (column) => data.ops[column][i]);
      const bound = data.ops.bound[i] ? "memory" : "compute";
      this.byOp.set(op, { op, flops, bytes, seconds, times, total: seconds * times, bound });
    });
  }

  opSeconds(op) { return this.byOp.get(op)?.total || 0; }

  collectiveSeconds(i) {
    const seconds = this.data.collectives[i];
    return seconds === undefined ? 0 : seconds * this.model.data.collectives.times[i];
  }

  /* Everything of a step in order: the collectives of an op come before it. */
  sequence() {
    const { model } = this;
    const entries = [];
    const add = (entry) => entry.seconds && entries.push(entry);
    for (let op = 0; op < model.opCount; op++) {
      const phase = model.phases[model.data.ops.phase[op]];
      for (const i of model.collectivesOf.get(op) || []) {
        add({ collective: i, op, phase, seconds: this.collectiveSeconds(i) });
      }
      add({ collective: -1, op, phase, seconds: this.opSeconds(op) });
    }
    return entries;
  }

  /* Costs by line of one file: ops made there, and what the user's lines there call. */
  lines(file) {
    if (!this.lineTables) this.lineTables = this.makeLineTables();
    return this.lineTables.get(file) || new Map();
  }

  makeLineTables() {
    const { model } = this;
    const tables = new Map();
    const at = ([file, line]) => {
      if (!tables.has(file)) tables.set(file, new Map());
      const table = tables.get(file);
      if (!table.has(line)) table.set(line, { seconds: 0, flops: 0, sent: 0, bytes: 0, tensors: [] });
      return table.get(line);
    };
    for (let i = 0; i < model.opCount; i++) {
      const op = model.op(i);
      const cost = this.byOp.get(i);
      const sent = sum((model.collectivesOf.get(i) || []).map(
        (one) => model.data.collectives.wire[one] * model.data.collectives.times[one]));
      const moving = sum((model.collectivesOf.get(i) || []).map((one) => this.collectiveSeconds(one)));
      const entries = new Set([at(op.line), at(op.user)]);
      for (const entry of entries) {
        entry.seconds += (cost?.total || 0) + moving;
        entry.flops += cost ? cost.flops * cost.times : 0;
        entry.sent += sent;
        for (const tensor of op.outputs) {
          if (model.data.tensors.listed[tensor]) entry.tensors.push(tensor);
          entry.bytes = Math.max(entry.bytes, model.data.tensors.bytes[tensor]);
        }
      }
    }
    return tables;
  }
}
