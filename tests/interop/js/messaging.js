// ServiceBusClient of @azure/service-bus, unmodified: plain AMQP as with the vendor's emulator, TLS, and WebSocket.

import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";
import { run, scenario, setting } from "./scenarios.js";

const PLAIN = setting("BUSBAR_PLAIN");
const SECURE = setting("BUSBAR_SECURE");
// Without this the SDK tries again for a long time before it tells what is wrong.
const OPTIONS = { retryOptions: { maxRetries: 0, timeoutInMs: 8_000 } };

const clients = new Map();

function client(connectionString) {
  if (!clients.has(connectionString)) {
    clients.set(connectionString, new ServiceBusClient(connectionString, OPTIONS));
  }
  return clients.get(connectionString);
}

const bus = client(PLAIN);

async function receive(receiver, count = 1, wait = 5_000) {
  const messages = await receiver.receiveMessages(count, { maxWaitTimeInMs: wait });
  assert.equal(messages.length, count);
  return count === 1 ? messages[0] : messages;
}

async function refusal(promise, code) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, `${error.code}: ${error.message}`);
    // The SDK tries again when it is unauthorized (keys may have been rotated meanwhile), never after the others.
    assert.equal(error.retryable, code === "UnauthorizedAccess");
    return true;
  });
}

scenario("single", async () => {
  const sent = {
    body: { order: 7, items: ["a", "b"] },
    messageId: "m-1",
    subject: "created",
    correlationId: "c-1",
    contentType: "application/json",
    replyTo: "answers",
    to: "someone",
    timeToLive: 60_000,
    partitionKey: "p",
    applicationProperties: { text: "x", number: 5, ratio: 0.5, yes: true, when: new Date(1e12), none: null },
  };
  await bus.createSender("single").sendMessages(sent);
  const receiver = bus.createReceiver("single");
  const got = await receive(receiver);
  for (const name of ["body", "messageId", "subject", "correlationId", "contentType", "replyTo", "to", "timeToLive"]) {
    assert.deepEqual(got[name], sent[name], name);
  }
  assert.equal(got.partitionKey, "p");
  assert.equal(got.applicationProperties.text, "x");
  assert.equal(got.applicationProperties.ratio, 0.5);
  assert.equal(+got.applicationProperties.when, 1e12);
  assert.equal(got.sequenceNumber.toNumber(), 1);
  assert.equal(got.deliveryCount, 0);
  assert.equal(got.state, "active");
  assert.ok(got.lockToken && got.lockedUntilUtc > new Date() && got.enqueuedTimeUtc <= new Date(Date.now() + 1_000));
  assert.equal(+got.expiresAtUtc, +got.enqueuedTimeUtc + 60_000);
  await receiver.completeMessage(got);
  assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 200 }), []);
});

scenario("bodies", async () => {
  const sender = bus.createSender("bodies");
  const receiver = bus.createReceiver("bodies", { receiveMode: "receiveAndDelete" });
  for (const body of ["text", Buffer.from([0, 255]), 42, null, [1, "two"], "x".repeat(200_000)]) {
    await sender.sendMessages({ body });
    const got = await receive(receiver);
    assert.deepEqual(got.body, body);
    assert.ok(got.messageId, "a message without an id is given one");
  }
});

scenario("batch", async () => {
  const sender = bus.createSender("batch");
  await sender.sendMessages([{ body: "0" }, { body: "1" }]);
  const batch = await sender.createMessageBatch();
  assert.equal(batch.maxSizeInBytes, 262_144);
  for (let number = 2; number < 10; number++) assert.ok(batch.tryAddMessage({ body: `${number}` }));
  assert.equal(batch.tryAddMessage({ body: "x".repeat(300_000) }), false);
  await sender.sendMessages(batch);
  const receiver = bus.createReceiver("batch");
  const got = await receive(receiver, 10);
  assert.deepEqual(got.map((message) => message.body), [..."0123456789"]);
  await Promise.all(got.map((message) => receiver.completeMessage(message)));
});

scenario("drain", async () => {
  // More is asked for than there is: the unused credit is drained, and the receiver stays usable.
  const sender = bus.createSender("drain");
  const receiver = bus.createReceiver("drain");
  assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 200 }), []);
  for (let round = 0; round < 2; round++) {
    await sender.sendMessages([{ body: "a" }, { body: "b" }]);
    const got = await receiver.receiveMessages(50, { maxWaitTimeInMs: 5_000 });
    assert.deepEqual(got.map((message) => message.body), ["a", "b"]);
    for (const message of got) await receiver.completeMessage(message);
  }
  assert.equal(receiver.isClosed, false);
  assert.deepEqual(await receiver.peekMessages(10), []);
});

scenario("subscribe", async () => {
  const sender = bus.createSender("subscribe");
  const receiver = bus.createReceiver("subscribe");
  const seen = new Set();
  const errors = [];
  let done;
  const all = new Promise((resolve) => (done = resolve));
  const subscription = receiver.subscribe(
    {
      processMessage: async (message) => {
        seen.add(message.body);
        if (seen.size === 30) done();
      },
      processError: async ({ error }) => {
        errors.push(error);
        done();
      },
    },
    { maxConcurrentCalls: 4 },
  );
  await sender.sendMessages(Array.from({ length: 30 }, (_, number) => ({ body: number })));
  await all;
  await subscription.close();
  assert.deepEqual(errors, []);
  await receiver.close();
  assert.deepEqual(await bus.createReceiver("subscribe").peekMessages(10), [], "all were completed automatically");
});

// Both ways to receive a session, on a regular and on a partitioned queue: the program asks, or the SDK runs the loop and calls.
for (const queue of ["sessions", "wide-sessions"]) {
  scenario(`${queue}: the program asks`, async () => {
    await sendSteps(`${queue}-asked`);
    const seen = {};
    for (let left = 2; left > 0; left--) {
      const receiver = await bus.acceptNextSession(`${queue}-asked`);
      for (let taken = 0; taken < 5; taken++) {
        const message = await receive(receiver);
        (seen[receiver.sessionId] ??= []).push(message.body);
        await receiver.completeMessage(message);
      }
      await receiver.close();
    }
    assert.deepEqual(seen, { a: [0, 1, 2, 3, 4], b: [0, 1, 2, 3, 4] });
  });

  scenario(`${queue}: the SDK calls a handler`, async () => {
    await sendSteps(`${queue}-handled`);
    const receivers = [await bus.acceptNextSession(`${queue}-handled`), await bus.acceptNextSession(`${queue}-handled`)];
    assert.deepEqual(receivers.map((receiver) => receiver.sessionId).sort(), ["a", "b"]);
    const seen = { a: [], b: [] };
    const failed = [];
    const handled = receivers.map(
      (receiver) =>
        new Promise((resolve, reject) => {
          receiver.subscribe({
            processMessage: async (message) => {
              assert.equal(message.sessionId, receiver.sessionId);
              seen[message.sessionId].push(message.body);
              await new Promise((done) => setTimeout(done, 20));
              // One that fails is abandoned by the SDK, and is the next one again.
              if (message.body === 2 && message.deliveryCount === 0) throw new Error("not yet");
              if (message.body === 7) setTimeout(resolve, 300); // it is completed when this function has returned
            },
            processError: async ({ error }) => {
              failed.push(error.message);
              if (error.message !== "not yet") reject(error);
            },
          });
        }),
    );
    while (!(seen.a.includes(4) && seen.b.includes(4))) await new Promise((done) => setTimeout(done, 20));
    await new Promise((done) => setTimeout(done, 200));
    await sendSteps(`${queue}-handled`, 5, 8); // they come while the SDK waits for them
    await Promise.all(handled);
    assert.deepEqual(seen, { a: [0, 1, 2, 2, 3, 4, 5, 6, 7], b: [0, 1, 2, 2, 3, 4, 5, 6, 7] });
    assert.deepEqual(failed, ["not yet", "not yet"]);
    for (const receiver of receivers) {
      assert.deepEqual(await receiver.peekMessages(10), [], "all were completed automatically");
      await receiver.close();
    }
  });
}

async function sendSteps(queue, from = 0, to = 5) {
  const sender = bus.createSender(queue);
  for (let step = from; step < to; step++) {
    for (const sessionId of ["a", "b"]) await sender.sendMessages({ body: step, sessionId });
  }
}

scenario("abandon", async () => {
  await bus.createSender("abandon").sendMessages({ body: "x" });
  const receiver = bus.createReceiver("abandon");
  await receiver.abandonMessage(await receive(receiver), { tried: "yes" });
  const again = await receive(receiver);
  assert.equal(again.deliveryCount, 1);
  assert.equal(again.applicationProperties.tried, "yes");
  await receiver.completeMessage(again);
});

scenario("defer", async () => {
  await bus.createSender("defer").sendMessages({ body: "x" });
  const receiver = bus.createReceiver("defer");
  const message = await receive(receiver);
  await receiver.deferMessage(message);
  const [peeked] = await receiver.peekMessages(1);
  assert.equal(peeked.state, "deferred");
  const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  assert.equal(deferred.body, "x");
  assert.equal(deferred.state, "deferred");
  await receiver.completeMessage(deferred);
  assert.deepEqual(await receiver.peekMessages(1), []);
});

scenario("dead-letter", async () => {
  await bus.createSender("dead-letter").sendMessages({ body: "x" });
  const receiver = bus.createReceiver("dead-letter");
  await receiver.deadLetterMessage(await receive(receiver), {
    deadLetterReason: "broken",
    deadLetterErrorDescription: "no wheels",
  });
  const dead = bus.createReceiver("dead-letter", { subQueueType: "deadLetter" });
  const message = await receive(dead);
  assert.equal(message.deadLetterReason, "broken");
  assert.equal(message.deadLetterErrorDescription, "no wheels");
  await dead.completeMessage(message);
});

scenario("peek", async () => {
  await bus.createSender("peek").sendMessages([{ body: 0 }, { body: 1 }, { body: 2 }]);
  const receiver = bus.createReceiver("peek");
  const first = await receiver.peekMessages(2);
  const rest = await receiver.peekMessages(2); // goes on where it was
  assert.deepEqual([...first, ...rest].map((message) => message.body), [0, 1, 2]);
  const [second] = await receiver.peekMessages(1, { fromSequenceNumber: first[1].sequenceNumber });
  assert.equal(second.body, 1);
});

scenario("schedule", async () => {
  const sender = bus.createSender("schedule");
  const [cancelled, soon] = await Promise.all([
    sender.scheduleMessages({ body: "never" }, new Date(Date.now() + 60_000)),
    sender.scheduleMessages([{ body: "soon" }], new Date(Date.now() + 1_500)),
  ]);
  assert.equal(soon.length, 1);
  const receiver = bus.createReceiver("schedule");
  const [peeked] = await receiver.peekMessages(1, { fromSequenceNumber: cancelled[0] });
  assert.equal(peeked.state, "scheduled");
  await sender.cancelScheduledMessages(cancelled);
  const message = await receive(receiver);
  assert.equal(message.body, "soon");
  await receiver.completeMessage(message);
  assert.deepEqual(await receiver.peekMessages(2), []);
});

scenario("sent again", async () => {
  // As it was received, also one that was scheduled and one that is deferred.
  const sender = bus.createSender("sent-again");
  const receiver = bus.createReceiver("sent-again");
  const sent = { body: "x", messageId: "m", partitionKey: "p", correlationId: "c", sessionId: "p" };
  await sender.scheduleMessages(sent, new Date(Date.now() + 500));
  let message = await receive(receiver);
  assert.ok(message.scheduledEnqueueTimeUtc <= new Date());
  for (let round = 0; round < 2; round++) {
    await receiver.deferMessage(message);
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    await sender.sendMessages(deferred);
    await receiver.completeMessage(deferred);
    message = await receive(receiver);
    for (const [name, value] of Object.entries(sent)) assert.deepEqual(message[name], value, name);
    assert.equal(+message.scheduledEnqueueTimeUtc, +deferred.scheduledEnqueueTimeUtc);
    assert.equal(message.state, "active");
    assert.ok(message._rawAmqpMessage.deliveryAnnotations["x-opt-lock-token"]);
  }
  await receiver.completeMessage(message);
});

scenario("renew", async () => {
  await bus.createSender("renew").sendMessages({ body: "x" });
  const receiver = bus.createReceiver("renew", { maxAutoLockRenewalDurationInMs: 0 });
  const message = await receive(receiver);
  const before = +message.lockedUntilUtc;
  await new Promise((resolve) => setTimeout(resolve, 300));
  const until = await receiver.renewMessageLock(message);
  assert.ok(+until > before && +message.lockedUntilUtc === +until);
  await receiver.completeMessage(message);
});

scenario("lock lost", async () => {
  await bus.createSender("lock-lost").sendMessages({ body: "x" });
  const receiver = bus.createReceiver("lock-lost", { maxAutoLockRenewalDurationInMs: 0 });
  const message = await receive(receiver);
  const again = await receive(receiver); // its lock of a second has ended
  assert.equal(again.deliveryCount, 1);
  await refusal(receiver.completeMessage(message), "MessageLockLost");
  await receiver.completeMessage(again);
});

scenario("entity not found", async () => {
  await refusal(bus.createSender("no-such-queue").sendMessages({ body: "x" }), "MessagingEntityNotFound");
  await refusal(bus.createReceiver("no-such-queue").receiveMessages(1), "MessagingEntityNotFound");
  await refusal(bus.createReceiver("no-such-queue").peekMessages(1), "MessagingEntityNotFound");
});

scenario("too large", async () => {
  await refusal(bus.createSender("large").sendMessages({ body: "x".repeat(300_000) }), "MessageSizeExceeded");
});

scenario("unauthorized", async () => {
  for (const broken of [
    PLAIN.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong"),
    PLAIN.replace(/SharedAccessKeyName=[^;]*/, "SharedAccessKeyName=Nobody"),
  ]) {
    const stranger = new ServiceBusClient(broken, OPTIONS);
    await refusal(stranger.createSender("single").sendMessages({ body: "x" }), "UnauthorizedAccess");
    await stranger.close();
  }
});

scenario("tls", async () => {
  const secure = client(SECURE);
  await secure.createSender("tls").sendMessages({ body: "x".repeat(150_000) });
  const receiver = secure.createReceiver("tls");
  const message = await receive(receiver);
  assert.equal(message.body.length, 150_000);
  await receiver.completeMessage(message);
  await secure.close();
});

scenario("websocket", async () => {
  const tunnelled = new ServiceBusClient(SECURE, { ...OPTIONS, webSocketOptions: { webSocket: WebSocket } });
  await tunnelled.createSender("websocket").sendMessages({ body: "x".repeat(150_000) });
  const receiver = tunnelled.createReceiver("websocket");
  const message = await receive(receiver);
  assert.equal(message.body.length, 150_000);
  await receiver.completeMessage(message);
  await tunnelled.close();
});

await run();
