"""The engine process: loop, scheduler, batch, forward stream, sampler. It alone touches the device."""
