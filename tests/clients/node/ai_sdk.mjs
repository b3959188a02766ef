// Vercel's AI SDK against a running Headrace, through three of its providers.
//
// usage: node ai_sdk.mjs PROFILE BASE_URL; prints one JSON object.
import { generateText, generateObject, streamText, jsonSchema, stepCountIs, tool } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { report, weather } from './scenarios.mjs';

const [, , profile, baseURL] = process.argv;
const url = `${baseURL}/v1`;
const openai = createOpenAI({ baseURL: url, apiKey: 'any' });
const models = {
  compatible: createOpenAICompatible({
    name: 'headrace', baseURL: url, apiKey: 'any', includeUsage: true, supportsStructuredOutputs: true,
  })('demo-model'),
  chat: openai.chat('demo-model'),
  anthropic: createAnthropic({ baseURL: url, apiKey: 'any' })('demo-model'),
};
// Its Responses provider writes input items without a type, which only one profile admits.
if (profile === 'official') models.responses = openai.responses('demo-model');

const scenarios = {};
for (const [name, model] of Object.entries(models)) {
  scenarios[`${name}_text`] = async () => {
    const answer = await generateText({ model, maxRetries: 0, prompt: '[[say:Two words.]]' });
    return [answer.text, answer.finishReason];
  };
  scenarios[`${name}_stream`] = async () => {
    const answer = streamText({ model, maxRetries: 0, prompt: '[[say:one two three]]' });
    let text = '';
    for await (const piece of answer.textStream) text += piece;
    return [text, await answer.finishReason];
  };
  scenarios[`${name}_tools`] = async () => {
    const cities = [];
    const answer = await generateText({
      model, maxRetries: 0, prompt: '[[tool:get_weather {"city": "Paris"}]]', stopWhen: stepCountIs(3),
      tools: {
        get_weather: tool({
          description: weather.description, inputSchema: jsonSchema(weather.schema),
          execute: async ({ city }) => (cities.push(city), '18C and sunny'),
        }),
      },
    });
    return [cities, answer.steps.length, answer.finishReason];
  };
  scenarios[`${name}_object`] = async () => {
    const answer = await generateObject({
      model, maxRetries: 0, prompt: 'Invent a person.',
      schema: jsonSchema({
        type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer' } },
        required: ['name', 'age'], additionalProperties: false,
      }),
    });
    return Object.keys(answer.object).sort();
  };
}
scenarios.error = async () => {
  try {
    await generateText({ model: openai.chat('nobody'), maxRetries: 0, prompt: 'hi' });
  } catch (error) {
    return [error.name, error.statusCode];
  }
};
await report(scenarios);
