// What the client programs share: running scenarios and telling what came of each.

export const image =
  'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGM4IScHRAwQCgAfJgQRoo8irwAAAABJRU5ErkJggg==';

export const weather = {
  name: 'get_weather',
  description: 'Get the current weather for a city.',
  schema: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
  },
};

/** Runs every scenario, and prints its result or how it failed, by name. */
export async function report(scenarios) {
  const results = {};
  for (const [name, run] of Object.entries(scenarios)) {
    try {
      results[name] = (await run()) ?? null;
    } catch (error) {
      results[name] = `${error.constructor.name}: ${error.message}`;
    }
  }
  console.log(JSON.stringify(results));
  process.exit(0);
}
