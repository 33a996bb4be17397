"""The tests: unit, flow, acceptance, browser, gpu, bench and the rules of the house."""
