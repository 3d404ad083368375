// MQTT.js on a string: reads commands as lines of JSON, answers each with one line, and reports every message that comes.
"use strict";

const mqtt = require("mqtt");
const readline = require("node:readline");

let client = null;

function say(line) {
  process.stdout.write(JSON.stringify(line) + "\n");
}

function bytes(text) {
  return Buffer.from(text, "base64");
}

function publishOptions(message, isV5) {
  const options = { qos: message.qos, retain: message.retain };
  if (isV5) {
    options.properties = { ...message.properties };
    if (message.correlation !== null) {
      options.properties.correlationData = bytes(message.correlation);
    }
  }
  return options;
}

function onMessage(topic, payload, packet) {
  const { correlationData, ...properties } = packet.properties ?? {};
  say({
    event: "message",
    topic,
    payload: payload.toString("base64"),
    qos: packet.qos,
    retain: packet.retain,
    properties,
    correlation: correlationData === undefined ? null : correlationData.toString("base64"),
  });
}

const commands = {
  connect(command, done) {
    const options = {
      protocolVersion: command.version,
      clientId: command.client_id,
      clean: command.clean,
      reconnectPeriod: 0,
      resubscribe: false,
    };
    if (command.expiry_s) {
      options.properties = { sessionExpiryInterval: command.expiry_s };
    }
    if (command.user_name !== null) {
      options.username = command.user_name;
      options.password = command.password;
    }
    if (command.will !== null) {
      const { topic, payload } = command.will;
      options.will = { topic, payload: bytes(payload), ...publishOptions(command.will, command.version === 5) };
    }
    client = mqtt.connect(command.url, options);
    client.isV5 = command.version === 5;
    client.on("message", onMessage);
    client.once("connect", (connack) => done(null, { session_present: connack.sessionPresent }));
    client.once("error", (error) => done(error));
  },

  subscribe(command, done) {
    const options = { qos: command.qos };
    if (command.identifier) {
      options.properties = { subscriptionIdentifier: command.identifier };
    }
    client.subscribe(command.filter, options, (error, granted) => {
      const refused = error ?? granted.map(({ qos }) => qos).find((qos) => qos >= 0x80);
      done(refused, {});
    });
  },

  publish(command, done) {
    const { message } = command;
    client.publish(message.topic, bytes(message.payload), publishOptions(message, client.isV5), (error) => done(error, {}));
  },

  disconnect(command, done) {
    client.end(false, {}, (error) => done(error, {}));
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.command](command, (error, answer) => {
    say(error ? { id: command.id, error: String(error) } : { id: command.id, ...answer });
  });
});
