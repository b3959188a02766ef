// OpenAI's agents library and LangChain, both for Node, against a running Headrace.
//
// usage: node agents_and_langchain.mjs PROFILE BASE_URL; prints one JSON object.
import OpenAI from 'openai';
import { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool } from '@openai/agents';
import { ChatOpenAI } from '@langchain/openai';
import { ChatAnthropic } from '@langchain/anthropic';
import { z } from 'zod';
import { report, weather } from './scenarios.mjs';

const [, , profile, baseURL] = process.argv;
setTracingDisabled(true);
setDefaultOpenAIClient(new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: 'any', maxRetries: 0 }));

async function agentTurn(api) {
  setOpenAIAPI(api);
  const cities = [];
  const agent = new Agent({
    name: 'Forecaster', model: 'demo-model', instructions: 'Be brief.',
    tools: [tool({
      name: weather.name, description: weather.description, parameters: z.object({ city: z.string() }),
      execute: async ({ city }) => (cities.push(city), '18C and sunny'),
    })],
  });
  // The list form carries the type that profile `wafer` asks for.
  const result = await run(agent, [{ type: 'message', role: 'user', content: '[[tool:get_weather {"city": "Paris"}]]' }]);
  return [cities, result.finalOutput.length > 0];
}

const scenarios = {
  agents_chat: () => agentTurn('chat_completions'),
  langchain_openai: async () => {
    const model = new ChatOpenAI({
      model: 'demo-model', apiKey: 'any', maxRetries: 0, useResponsesApi: false, configuration: { baseURL: `${baseURL}/v1` },
    });
    const answer = await model.invoke('[[say:Two words.]]');
    const bound = model.bindTools([{ type: 'function', function: { name: weather.name, parameters: weather.schema } }]);
    const called = await bound.invoke('[[tool:get_weather {"city": "Paris"}]]');
    let text = '';
    for await (const chunk of await model.stream('[[say:one two]]')) text += chunk.content;
    return [answer.content, called.tool_calls.map((call) => [call.name, call.args]), text];
  },
  langchain_anthropic: async () => {
    const model = new ChatAnthropic({ model: 'demo-model', apiKey: 'any', maxRetries: 0, maxTokens: 256, anthropicApiUrl: baseURL });
    const answer = await model.invoke('[[say:Two words.]]');
    const bound = model.bindTools([{ name: weather.name, input_schema: weather.schema }]);
    const called = await bound.invoke('[[tool:get_weather {"city": "Paris"}]]');
    return [answer.content, called.tool_calls.map((call) => [call.name, call.args])];
  },
};
if (profile === 'official') scenarios.agents_responses = () => agentTurn('responses');
await report(scenarios);
