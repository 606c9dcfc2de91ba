// Runs scenarios beside one another, each on a connection and with streams of its own.
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";
import { connect, headers, nuid } from "@nats-io/transport-node";

const PATIENCE_MS = 60_000;

const named = (prefix) => `${prefix}-${nuid.next()}`;

// Returns "ok", or the code of the server's error.
async function outcome(promise) {
  try {
    await promise;
    return "ok";
  } catch (error) {
    return error.code ?? error.message;
  }
}

async function core({ nc }) {
  const subject = named("core");
  const seen = [];
  const echo = nc.subscribe(`${subject}.*`, {
    callback: (_, message) => {
      seen.push(message.headers?.values("A") ?? []);
      message.respond(`pong ${message.string()}`);
    },
  });
  const sent = headers();
  sent.append("A", "1");
  sent.append("A", "2");
  const answer = await nc.request(`${subject}.x`, "ping", { headers: sent, timeout: 5_000 });
  await echo.drain();
  const silent = await outcome(nc.request(subject, "", { timeout: 5_000 }));
  return { answer: answer.string(), headers: seen, silent: silent.includes("no responders") };
}

async function keyValues({ nc }) {
  const kvm = new Kvm(nc);
  const bucket = named("B");
  const kv = await kvm.create(bucket, { history: 3 });
  const revisions = [await kv.create("k", "1"), await kv.put("k", "2"), await kv.put("other.key", "x")];
  const stale = await outcome(kv.update("k", "3", 1));
  const exists = await outcome(kv.create("k", "again"));
  const keys = [];
  for await (const key of await kv.keys()) keys.push(key);
  const history = [];
  for await (const entry of await kv.history({ key: "k" })) history.push(entry.string());
  await kv.delete("other.key");
  const gone = await kv.get("other.key");
  const old = await kv.get("k", { revision: 1 });
  const status = await kv.status();
  await kv.destroy();
  return {
    revisions, stale, exists, keys: keys.sort(), history, gone: gone?.operation ?? null,
    old: old.string(), values: status.values,
  };
}

async function keysThatExpire({ nc }) {
  const kv = await new Kvm(nc).create(named("B"), { history: 3, markerTTL: 1_000 });
  const watch = await kv.watch();
  const seen = [];
  const watching = (async () => {
    for await (const entry of watch) {
      seen.push(`${entry.key} ${entry.operation} ${entry.string()} ${entry.revision}`);
      if (seen.length === 3) break;
    }
  })();
  await kv.create("k", "1", "1s");
  await new Promise((expired) => {
    const look = async () => (await kv.get("k"))?.operation === "PUT" ? setTimeout(look, 50) : expired();
    look();
  });
  await kv.create("k", "2");
  await watching;
  const status = await kv.status();
  await kv.destroy();
  return { seen, marker: status.markerTTL };
}

async function pulled({ js, jsm }) {
  const stream = named("S");
  await jsm.streams.add({ name: stream, subjects: [`${stream}.*`] });
  for (let n = 1; n <= 200; n++) await js.publish(`${stream}.${n % 4}`, `${n}`, { msgID: `${n}` });
  const twice = await js.publish(`${stream}.0`, "200", { msgID: "200" });
  await jsm.consumers.add(stream, { durable_name: "d", ack_policy: AckPolicy.Explicit });
  const consumer = await js.consumers.get(stream, "d");
  let sum = 0;
  for await (const message of await consumer.fetch({ max_messages: 50 })) {
    sum += Number(message.string());
    message.ack();
  }
  const messages = await consumer.consume({ max_messages: 30 });
  for await (const message of messages) {
    sum += Number(message.string());
    await message.ackAck();
    if (message.info.pending === 0) break;
  }
  const info = await consumer.info();
  await jsm.streams.delete(stream);
  return { sum, twice: twice.duplicate, floor: info.ack_floor.stream_seq, waiting: info.num_ack_pending };
}

async function ordered({ js, jsm }) {
  const stream = named("S");
  await jsm.streams.add({ name: stream, subjects: [`${stream}.*`] });
  for (let n = 1; n <= 20; n++) await js.publish(`${stream}.${n % 2}`, `${n}`);
  const consumer = await js.consumers.get(stream, { filter_subjects: [`${stream}.1`] });
  const seen = [];
  for await (const message of await consumer.fetch({ max_messages: 10, expires: 5_000 })) seen.push(message.seq);
  await jsm.streams.delete(stream);
  return seen;
}

// What is served without consumers, a batch at a time.
async function direct({ js, jsm }) {
  const stream = named("S");
  await jsm.streams.add({ name: stream, subjects: [`${stream}.*`], allow_direct: true });
  for (let n = 1; n <= 9; n++) await js.publish(`${stream}.${n % 3}`, `${n}`);
  const collect = async (found) => {
    const seen = [];
    for await (const message of found) seen.push(`${message.seq} ${message.string()}`);
    return seen;
  };
  const batch = await collect(await jsm.direct.getBatch(stream, { seq: 4, batch: 3 }));
  const last = await collect(await jsm.direct.getLastMessagesFor(stream, { multi_last: [`${stream}.>`] }));
  const one = await jsm.direct.getMessage(stream, { last_by_subj: `${stream}.1` });
  await jsm.streams.delete(stream);
  return { batch, last, one: one.string() };
}

async function objects({ nc }) {
  const store = await new Objm(nc).create(named("O"));
  const large = new Uint8Array(400_000).fill(7);
  const info = await store.putBlob({ name: "large", options: { max_chunk_size: 65_536 } }, large);
  const back = await store.getBlob("large");
  const list = (await store.list()).map((one) => one.name);
  await store.delete("large");
  const gone = (await store.info("large"))?.deleted ?? null;
  await store.destroy();
  return { chunks: info.chunks, same: Buffer.compare(back, large) === 0, list, gone };
}

const SCENARIOS = {
  js_core: core,
  js_key_values: keyValues,
  js_keys_that_expire: keysThatExpire,
  js_pulled: pulled,
  js_ordered: ordered,
  js_direct: direct,
  js_objects: objects,
};

async function played(url, scenario) {
  const nc = await connect({ servers: url.replace("nats://", "") });
  try {
    const late = new Promise((_, reject) => {
      setTimeout(() => reject(new Error("it did not end")), PATIENCE_MS).unref();
    });
    const user = { nc, js: jetstream(nc), jsm: await jetstreamManager(nc) };
    return { shows: await Promise.race([scenario(user), late]) };
  } catch (error) {
    return { error: String(error.stack) };
  } finally {
    await nc.close();
  }
}

const [url, ...names] = process.argv.slice(2);
await Promise.all(names.map(async (name) => {
  const found = await played(url, SCENARIOS[name]);
  console.log(JSON.stringify({ name, ...found }));
}));
