/* One plan: its columns by name, and the ways between ops, tensors, scopes and devices. */

class Model {
  constructor(data, index) {
    this.data = data;
    this.index = index;
    this.letter = "AB"[index];
    this.axes = data.axes.map(([name, size], number) => ({ name, size, number }));
    this.devices = this.axes.reduce((count, axis) => count * axis.size, 1);
    this.phases = data.phases;
    this.tensorCount = data.tensors.label.length;
    this.opCount = data.ops.name.length;
    this.collectiveCount = data.collectives.kind.length;
    this.opByName = new Map(data.ops.name.map((text, i) => [this.text(text), i]));
    this.cotangents = new Map();
    data.tensors.primal.forEach((primal, i) => {
      if (primal < 0) return;
      pushTo(this.cotangents, primal, i);
      // What is computed again in the backward pass has the cotangent of the first one.
      const origin = data.tensors.origin[primal];
      if (origin >= 0) pushTo(this.cotangents, origin, i);
    });
    this.collectivesOf = new Map();
    data.collectives.op.forEach((op, i) => pushTo(this.collectivesOf, op, i));
    this.places = data.places.map(([dtype, dims, partial], number) => ({
      number, dtype, dims: dims.map(([name, size, axes]) => ({ name, size, axes })), partial,
    }));
    this.held = this.places.map((place) => {
      const held = new Set(place.dims.flatMap((dim) => dim.axes));
      return this.axes.filter((axis) => held.has(axis.number));
    });
    this.fileByName = new Map(data.files.map((file, i) => [file.name, i]));
  }

  text(i) { return this.data.texts[i]; }

  op(i) {
    const ops = this.data.ops;
    return {
      i, name: this.text(ops.name[i]), kind: this.text(ops.kind[i]), scope: this.text(ops.scope[i]),
      phase: this.phases[ops.phase[i]], line: ops.line[i], user: ops.user[i], loop: ops.loop[i],
      inputs: ops.inputs[i], outputs: ops.outputs[i],
    };
  }

  tensor(i) {
    const tensors = this.data.tensors;
    return {
      i, label: this.text(tensors.label[i]), place: this.place(tensors.place[i]),
      natural: this.place(tensors.natural[i]), moved: tensors.natural[i] !== tensors.place[i],
      bytes: tensors.bytes[i], padding: tensors.padding[i], primal: tensors.primal[i],
      listed: Boolean(tensors.listed[i]), free: Boolean(tensors.free[i]), op: tensors.op[i],
    };
  }

  place(i) { return this.places[i]; }

  collective(i) {
    const all = this.data.collectives;
    return {
      i, kind: this.text(all.kind[i]), axes: all.axes[i], bytes: all.bytes[i], wire: all.wire[i],
      times: all.times[i], open: Boolean(all.open[i]), dtype: this.text(all.dtype[i]),
      tensor: this.text(all.tensor[i]), scope: this.text(all.scope[i]),
      phase: this.phases[all.phase[i]], line: all.line[i], op: all.op[i], producer: all.producer[i],
      hop: this.text(all.hop[i]), host: all.host[i], slice: all.slice[i], status: this.data.audit ? this.data.audit.statuses[i] : null,
    };
  }

  collectives() { return Array.from({ length: this.collectiveCount }, (_, i) => this.collective(i)); }

  /* The tensor that a collective moves: what its producer made, as far as names tell. */
  tensorOf(collective) {
    const op = collective.producer >= 0 ? collective.producer : collective.op;
    if (op < 0) return -1;
    const outputs = this.data.ops.outputs[op];
    const named = outputs.find((i) => this.text(this.data.tensors.label[i]) === collective.tensor);
    return named === undefined ? outputs[0] ?? -1 : named;
  }

  tensorName(i) {
    const op = this.data.tensors.op[i];
    const outputs = this.data.ops.outputs[op];
    const name = this.text(this.data.ops.name[op]);
    return outputs.length > 1 ? `${name}:${outputs.indexOf(i)}` : name;
  }

  findTensor(name) {
    const [, op, position] = /^(.*?)(?::(\d+))?$/.exec(name);
    const number = this.opByName.get(op);
    if (number === undefined) return -1;
    return this.data.ops.outputs[number][Number(position || 0)] ?? -1;
  }

  lineText([file, line]) { return `${this.data.files[file].name}:${line}`; }

  lineCode([file, line]) { return (this.data.files[file].lines[line - 1] || "").trim(); }

  /* The axes that a tensor's dimensions hold, in the order of the mesh. */
  heldAxes(place) { return this.held[place.number]; }

  /* The coordinates of the device that takes a place of the mesh, the last axis changing fastest. */
  coordinates(position) {
    const coordinates = [];
    let rest = position;
    for (const axis of [...this.axes].reverse()) {
      coordinates.unshift(rest % axis.size);
      rest = Math.floor(rest / axis.size);
    }
    return coordinates;
  }

  deviceAt(position) { return this.data.devices.length ? this.data.devices[position] : position; }

  /* Which shard of each dimension lies at a place of the mesh. */
  shards(place, position) {
    const coordinates = this.coordinates(position);
    return place.dims.map((dim) => {
      const ways = dim.axes.reduce((count, axis) => count * this.axes[axis].size, 1);
      const shard = dim.axes.reduce((at, axis) => at * this.axes[axis].size + coordinates[axis], 0);
      const length = Math.ceil(dim.size / ways);
      const start = Math.min(shard * length, dim.size);
      return { ...dim, ways, shard, start, end: Math.min(start + length, dim.size) };
    });
  }

  /* The number of the shard at a place, among all different ones. */
  shardNumber(place, position) {
    return this.shards(place, position).reduce((number, dim) => number * dim.ways + dim.shard, 0);
  }

  shardCount(place) {
    return this.heldAxes(place).reduce((count, axis) => count * axis.size, 1);
  }

  /* The loops that an op is in, innermost first. */
  loops(op) {
    const loops = [];
    for (let i = this.data.ops.loop[op]; i >= 0; i = this.data.ops.loop[i]) loops.push(i);
    return loops;
  }
}

function pushTo(map, key, value) {
  if (map.has(key)) map.get(key).push(value);
  else map.set(key, [value]);
}

function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
