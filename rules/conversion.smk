rule conversion:
    """Write and verify a Hugging Face directory."""
    input:
        RUN.inputs("conversion"),
    output:
        RUN.stamp("conversion"),
    log:
        RUN.log("conversion"),
    benchmark:
        RUN.benchmark("conversion")
    conda:
        "../environment.yml"
    threads: RUN.threads("conversion")
    resources:
        **RUN.resources("conversion"),
    params:
        job=JOB,
    shell:
        "{params.job} --node conversion --work {wildcards.work} > {log:q} 2>&1"
