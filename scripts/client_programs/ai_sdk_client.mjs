// Vercel's AI SDK: text whole and streamed, a required tool, an object by a schema.
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, key, prompt, maxTokens] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "sluice", baseURL: `${url}/v1`, apiKey: key, supportsStructuredOutputs: true,
});
const model = provider("sluice");
const settings = { model, temperature: 0, maxOutputTokens: Number(maxTokens), maxRetries: 0 };

const whole = await generateText({ ...settings, prompt });
let streamed = "";
for await (const part of streamText({ ...settings, prompt }).textStream) streamed += part;
assert.strictEqual(streamed, whole.text, "streamed otherwise");

const written = [];
const note = tool({
  description: "Write a sentence into the notebook.",
  inputSchema: z.object({ sentence: z.string().regex(/^Prelia is [0-9]+ years old$/) }),
  execute: async ({ sentence }) => { written.push(sentence); return "It is written down."; },
});
const question = "Prelia is 11 years old. The heavy clock is near the boathouse.\n\nHow old is Prelia?";
const called = await generateText({
  ...settings, prompt: question, maxOutputTokens: 256, tools: { note }, toolChoice: "required", stopWhen: stepCountIs(1),
});
assert.strictEqual(called.finishReason, "tool-calls");
assert.deepStrictEqual(written, ["Prelia is 11 years old"]);

const sky = z.object({ sky: z.enum(["clear", "cloudy"]) });
const { object } = await generateObject({ ...settings, prompt: "How is the sky?", schema: sky, maxOutputTokens: 64 });
assert.ok(["clear", "cloudy"].includes(object.sky));
console.log(whole.text);
