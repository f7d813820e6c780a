// ServiceBusAdministrationClient of @azure/service-bus, unmodified, over TLS.

import assert from "node:assert/strict";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import { run, scenario, setting } from "./scenarios.js";

const SECURE = setting("BUSBAR_SECURE");
const OPTIONS = { retryOptions: { maxRetries: 0, timeoutInMs: 8_000 } };
const admin = new ServiceBusAdministrationClient(SECURE, OPTIONS);

async function refusal(promise, status, code) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.statusCode, status, `${error.statusCode}: ${error.message}`);
    assert.equal(error.code, code, `${error.code}: ${error.message}`);
    return true;
  });
}

async function all(pages) {
  const items = [];
  for await (const item of pages) items.push(item);
  return items;
}

scenario("a message through a new queue", async () => {
  await admin.createQueue("fresh");
  const bus = new ServiceBusClient(SECURE, OPTIONS);
  await bus.createSender("fresh").sendMessages([{ body: "one" }, { body: "two" }]);
  assert.equal((await admin.getQueueRuntimeProperties("fresh")).activeMessageCount, 2);
  const receiver = bus.createReceiver("fresh");
  const messages = await receiver.receiveMessages(2, { maxWaitTimeInMs: 5_000 });
  assert.deepEqual(messages.map((message) => message.body), ["one", "two"]);
  for (const message of messages) await receiver.completeMessage(message);
  assert.equal((await admin.getQueueRuntimeProperties("fresh")).totalMessageCount, 0);
  await bus.close();
});

scenario("a queue's life", async () => {
  const wanted = {
    lockDuration: "PT45S",
    maxSizeInMegabytes: 2048,
    defaultMessageTimeToLive: "P1D",
    deadLetteringOnMessageExpiration: true,
    maxDeliveryCount: 7,
    enableBatchedOperations: false,
    userMetadata: "mine & <yours>",
  };
  const created = await admin.createQueue("life", wanted);
  assert.equal(created.name, "life");
  assert.equal(await admin.queueExists("life"), true);
  const read = await admin.getQueue("life");
  for (const [name, value] of Object.entries(wanted)) assert.equal(read[name], value, name);
  assert.equal(read.requiresSession, false);
  assert.equal(read.enablePartitioning, false);
  assert.equal(read.status, "Active");

  const updated = await admin.updateQueue({ ...read, maxDeliveryCount: 3, lockDuration: "PT1M" });
  assert.equal(updated.maxDeliveryCount, 3);
  assert.equal((await admin.getQueue("life")).lockDuration, "PT1M");

  const runtime = await admin.getQueueRuntimeProperties("life");
  assert.ok(runtime.createdAt <= runtime.modifiedAt && runtime.sizeInBytes === 0);

  await admin.deleteQueue("life");
  assert.equal(await admin.queueExists("life"), false);
});

scenario("lists", async () => {
  for (let number = 0; number < 12; number++) await admin.createQueue(`listed/${number}`);
  const mine = (queues) => queues.map((queue) => queue.name).filter((name) => name.startsWith("listed/"));
  assert.equal(mine(await all(admin.listQueues())).length, 12);
  const pages = [];
  for await (const page of admin.listQueues().byPage({ maxPageSize: 5 })) pages.push(...page);
  assert.equal(mine(pages).length, 12);
  assert.equal(mine(await all(admin.listQueuesRuntimeProperties())).length, 12);
});

scenario("topics, subscriptions and rules", async () => {
  await admin.createTopic("events", { maxSizeInMegabytes: 1024, userMetadata: "t" });
  assert.equal((await admin.getTopic("events")).userMetadata, "t");
  const subscription = await admin.createSubscription("events", "audit", { lockDuration: "PT30S", maxDeliveryCount: 4 });
  assert.equal(subscription.topicName, "events");
  assert.equal(subscription.subscriptionName, "audit");
  assert.equal((await admin.getSubscription("events", "audit")).maxDeliveryCount, 4);
  assert.equal((await admin.getTopicRuntimeProperties("events")).subscriptionCount, 1);
  assert.deepEqual((await all(admin.listSubscriptions("events"))).map((one) => one.subscriptionName), ["audit"]);

  const [standard] = await all(admin.listRules("events", "audit"));
  assert.equal(standard.name, "$Default");
  assert.equal(standard.filter.sqlExpression, "1=1");
  await admin.createRule("events", "audit", "big", { sqlExpression: "size > @least", sqlParameters: { "@least": 5 } },
    { sqlExpression: "SET seen = TRUE" });
  const big = await admin.getRule("events", "audit", "big");
  assert.equal(big.filter.sqlExpression, "size > @least");
  assert.deepEqual(big.filter.sqlParameters, { "@least": 5 });
  assert.equal(big.action.sqlExpression, "SET seen = TRUE");
  const wanted = {
    correlationId: "c",
    subject: "s",
    applicationProperties: { colour: "red", count: 3, ok: true, when: new Date("2026-01-02T03:04:05Z") },
  };
  await admin.createRule("events", "audit", "some", wanted);
  const some = await admin.getRule("events", "audit", "some");
  assert.equal(some.filter.correlationId, "c");
  assert.equal(some.filter.subject, "s");
  assert.deepEqual(some.filter.applicationProperties, wanted.applicationProperties);
  const names = (await all(admin.listRules("events", "audit"))).map((rule) => rule.name);
  assert.deepEqual(names.sort(), ["$Default", "big", "some"]);

  await admin.deleteRule("events", "audit", "big");
  assert.equal(await admin.ruleExists("events", "audit", "big"), false);
  await admin.deleteSubscription("events", "audit");
  assert.equal(await admin.subscriptionExists("events", "audit"), false);
  await admin.deleteTopic("events");
  assert.equal(await admin.topicExists("events"), false);
});

for (const [name, enablePartitioning] of [["news", false], ["wide-news", true]]) {
  scenario(`messages through the topic ${name}`, async () => {
    await admin.createTopic(name, { enablePartitioning });
    for (const one of ["all", "red"]) await admin.createSubscription(name, one);
    const bus = new ServiceBusClient(SECURE, OPTIONS);
    const rules = bus.createRuleManager(name, "red");
    await rules.deleteRule("$Default");
    await rules.createRule("red", { applicationProperties: { colour: "red" } }, { sqlExpression: "SET seen = TRUE" });
    const sender = bus.createSender(name);
    await sender.sendMessages([{ body: "one" }, { body: "two", applicationProperties: { colour: "red" } }]);
    await sender.scheduleMessages({ body: "three" }, new Date(Date.now() + 500));

    const receiver = bus.createReceiver(name, "all");
    const bodies = [];
    while (bodies.length < 3) {
      const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 5_000 });
      assert.ok(message, `only ${bodies} came`);
      bodies.push(message.body);
      await receiver.completeMessage(message);
    }
    assert.deepEqual(bodies.sort(), ["one", "three", "two"]);
    const red = bus.createReceiver(name, "red");
    const [message] = await red.receiveMessages(3, { maxWaitTimeInMs: 5_000 });
    assert.equal(message.body, "two");
    assert.deepEqual(message.applicationProperties, { colour: "red", seen: true, RuleName: "red" });
    await red.deadLetterMessage(message, { deadLetterReason: "because" });
    const [dead] = await bus.createReceiver(name, "red", { subQueueType: "deadLetter" }).peekMessages(5);
    assert.equal(dead.deadLetterReason, "because");
    const counts = await admin.getSubscriptionRuntimeProperties(name, "red");
    assert.deepEqual([counts.activeMessageCount, counts.deadLetterMessageCount], [0, 1]);
    await bus.close();
  });
}

scenario("rules over AMQP", async () => {
  await admin.createTopic("managed", { enablePartitioning: true });
  await admin.createSubscription("managed", "all");
  const bus = new ServiceBusClient(SECURE, OPTIONS);
  const rules = bus.createRuleManager("managed", "all");
  assert.deepEqual(await rules.getRules(), [{ name: "$Default", filter: { sqlExpression: "1=1" }, action: {} }]);
  await rules.deleteRule("$Default");
  assert.deepEqual(await rules.getRules(), []);

  await rules.createRule("big", { sqlExpression: "size > 5" }, { sqlExpression: "SET seen = TRUE" });
  const wanted = {
    correlationId: "c",
    subject: "s",
    applicationProperties: { colour: "red", count: 3, share: 0.5, ok: true, when: new Date("2026-01-02T03:04:05Z") },
  };
  await rules.createRule("some", wanted);
  const [big, some] = await all(rules.listRules());
  assert.deepEqual(big, {
    name: "big", filter: { sqlExpression: "size > 5" }, action: { sqlExpression: "SET seen = TRUE" },
  });
  assert.equal(some.name, "some");
  assert.equal(some.filter.correlationId, "c");
  assert.equal(some.filter.subject, "s");
  assert.deepEqual(some.filter.applicationProperties, wanted.applicationProperties);
  assert.equal((await admin.getRule("managed", "all", "some")).filter.applicationProperties.colour, "red");

  await assert.rejects(rules.createRule("big", { sqlExpression: "1=1" }), { code: "MessagingEntityAlreadyExists" });
  await assert.rejects(rules.createRule("bad", { sqlExpression: "size >" }), { message: /expected|size >/ });
  await assert.rejects(rules.deleteRule("nobody"), { code: "MessagingEntityNotFound" });
  await bus.close();
});

scenario("the namespace", async () => {
  const space = await admin.getNamespaceProperties();
  assert.equal(space.messagingSku, "Standard");
  assert.ok(space.name && space.createdAt <= new Date(Date.now() + 1_000));
});

scenario("refusals", async () => {
  await admin.createQueue("twice");
  await refusal(admin.createQueue("twice"), 409, "MessageEntityAlreadyExistsError");
  await refusal(admin.getQueue("nowhere"), 404, "MessageEntityNotFoundError");
  await refusal(admin.deleteQueue("nowhere"), 404, "MessageEntityNotFoundError");
  await refusal(admin.createQueue("long", { lockDuration: "PT10M" }), 400, "ServiceError");
  const queue = await admin.getQueue("twice");
  await refusal(admin.updateQueue({ ...queue, requiresSession: true }), 400, "ServiceError");
});

scenario("strangers", async () => {
  const stranger = new ServiceBusAdministrationClient(
    SECURE.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong"), OPTIONS);
  await refusal(stranger.getQueue("anything"), 401, "UnauthorizedRequestError");
  await refusal(stranger.createQueue("anything"), 401, "UnauthorizedRequestError");
});

await run();
