// The AI SDK: `generateText` and `streamText` on responses, where it names items of earlier answers by their ids, and on
// chat completions, two turns each.
// Rule: every answer goes back into the history as the SDK gives it.
import { execSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

// The packages are not beside this file but where NODE_PATH says, which `import` does not read.
const require = createRequire(import.meta.url);
const { generateText, stepCountIs, streamText, tool } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const TURNS = (process.env.TURNS ?? "Read the notes.\nRead them again, please. é").split("\n");
const text = (...names) => z.object(Object.fromEntries(names.map((each) => [each, z.string()])));
const make = (name, inputSchema, execute) => tool({ description: name, inputSchema, execute });
const tools = {
  read_file: make("read_file", text("path"), async ({ path }) => readFileSync(path, "utf8")),
  run_shell_command: make("run_shell_command", text("command"), async ({ command }) =>
    execSync(command, { encoding: "utf8" }),
  ),
  write_file: make("write_file", text("path", "content"), async ({ path, content }) => {
    writeFileSync(path, content);
    return `wrote ${content.length} characters`;
  }),
};

async function talk(model, stream) {
  const messages = [];
  for (const turn of TURNS) {
    messages.push({ role: "user", content: `${turn} Streamed: ${stream}.` });
    const asked = { model, messages, tools, maxRetries: 0, stopWhen: stepCountIs(100) };
    const result = stream ? streamText(asked) : await generateText(asked);
    console.log(await result.text);
    messages.push(...(await result.response).messages);
  }
}

for (const model of [openai.responses("scripted"), openai.chat("scripted")])
  for (const stream of [false, true]) await talk(model, stream);
