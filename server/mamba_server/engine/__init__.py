"""Process 2: loop, scheduler, batch, forward stream, sampler. The only process that touches the device."""
